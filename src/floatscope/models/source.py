"""Locate and read the files and the tokenizer of a checkpoint: a directory, a GGUF file or a hub id."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import transformers

from ..errors import ModelError, foreign
from ..sequences import tokenizer_bounds
from ..untrusted import Unreadable, opened, read_object
from . import pair, twin, vocabulary_files
from .family import Family
from .pair import PAIR
from .spec import is_hub_id, no_such_model
from .twin import TWIN

# Arguments of every from_pretrained: download nothing, and run no code from a checkpoint.
NO_CODE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
ADAPTER_CONFIG = "adapter_config.json"
_WANTED = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_JSON_LIMIT = 10_000_000  # bytes of a config.json; real ones have a few thousand


def locate(where: str | Path, revision: str | None) -> Path:
    """Return the checkpoint's directory or GGUF file on this machine."""
    if where in PAIR:
        return pair.locate(str(where))
    if where in TWIN:
        return twin.locate(str(where))
    path = Path(where).expanduser()
    if path.is_file():
        if path.suffix == ".gguf":
            return path
        raise ModelError(
            f"{path} is a file, but not a GGUF file", "Give the checkpoint's directory."
        )
    if path.is_dir():
        gguf = sorted(path.glob("*.gguf"))
        if not (path / "config.json").exists() and len(gguf) == 1:
            return gguf[0]
        return path
    if isinstance(where, str) and is_hub_id(where):
        return _from_hub(where, revision)
    raise no_such_model(where)


def _from_hub(repo: str, revision: str | None) -> Path:
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=_WANTED))
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repo} is gated", "Accept its licence on the hub and log in: hf auth login."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"no model {repo} on the hub", "Check the name; private models need hf auth login."
        ) from error
    except Exception as error:
        # The hub's client passes through exceptions of its HTTP library, which differs between versions.
        transport = type(error).__module__.startswith(("httpx", "httpcore", "requests"))
        if not transport and not isinstance(error, OSError | errors.HfHubHTTPError):
            raise
        raise ModelError(
            f"{repo} is not a local directory, and the hub cannot be reached ({error})",
            "Connect to download it once, or give the directory of a copy.",
        ) from error


def require_files(path: Path) -> None:
    """Refuse a checkpoint in which a name of a needed file is a directory, a broken link or a device."""
    for pattern in _WANTED:
        for file in path.glob(pattern):
            if not file.is_file():
                raise ModelError(
                    f"{file} is not a file: expected one, or a link to one",
                    "The checkpoint is damaged or incomplete: download or copy it again.",
                )


def require_no_other_adapter(path: Path, adapter: Path | None) -> None:
    """Refuse a checkpoint directory that contains an adapter, unless `adapter` is that directory."""
    file = path / ADAPTER_CONFIG
    if file.exists() and (adapter is None or adapter.resolve() != path.resolve()):
        raise ModelError(
            f"{path} contains an adapter beside its weights ({file.name}), which adapter= does not name",
            f"To merge it: load({str(path)!r}, adapter={str(path)!r}), or 'DIR,adapter=DIR'; to "
            f"load only the base, move {file.name} away.",
        )


def read_config(path: Path) -> dict[str, Any]:
    return read_json(path / "config.json")


def read_generation(path: Path) -> Any:
    """Return generation_config.json's end tokens as `eos_token_id` of an object; None without the file."""
    if not (path / "generation_config.json").exists():
        return None
    settings = read_json(path / "generation_config.json")
    return SimpleNamespace(eos_token_id=settings.get("eos_token_id"))


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in a small file of a checkpoint or adapter; ModelError if it is unreadable."""
    try:
        return read_object(file, _JSON_LIMIT)
    except FileNotFoundError as error:
        raise ModelError(
            f"{file.parent} has no {file.name}", "Give the directory of the checkpoint."
        ) from error
    except Unreadable as error:
        raise ModelError(f"{file} {error.problem}", "Copy it again.") from error


def architecture(raw: dict[str, Any], path: Path) -> str | None:
    """Return the first architecture that config.json names, or None if it names none."""
    named = raw.get("architectures") or [None]
    if not isinstance(named, list) or not isinstance(named[0], str | None):
        raise ModelError(
            f"{path / 'config.json'}: architectures = {named!r:.80}, expected a list of names",
            "Correct it, or pass family=... to load.",
        )
    return named[0]


def weight_files(path: Path) -> list[Path]:
    """List the files with the network's weights: model.safetensors, or the files that its index names."""
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if not index.exists():
        raise ModelError(
            f"{path} contains neither {single.name} nor {index.name}",
            "The checkpoint is incomplete, or its files have other names: copy it again.",
        )
    files = [path / name for name in sorted(set(_index(index).values()))]
    for file in files:
        if not file.is_file():
            raise ModelError(f"{path} lacks {file.name}, which its index names", "Copy it again.")
    return files


def require_safetensors(path: Path) -> None:
    """Refuse weights that are not safetensors by name and content, and an index with files elsewhere."""
    files = sorted(path.glob("*.safetensors"))
    pickles = sorted(p.name for p in [*path.glob("*.bin"), *path.glob("*.pt"), *path.glob("*.pth")])
    if not files and pickles:
        raise _pickled(path, pickles[0])
    if not files:
        raise ModelError(f"{path} contains no *.safetensors file", "The checkpoint is incomplete.")
    for file in files:
        try:
            with opened(file) as content:
                start = content.read(9)
        except (FileNotFoundError, Unreadable) as error:
            raise ModelError(f"{file} cannot be read: {error}", "Copy it again.") from error
        # A header of 128, 384, … bytes begins like a pickle: the lowest byte of its length is 0x80.
        if start.startswith(_PICKLES) and start[8:9] != b"{":
            raise _pickled(path, file.name)
    for index in path.glob("*.safetensors.index.json"):
        _index(index)


_PICKLES = (b"\x80", b"PK\x03\x04")  # a pickle, and torch's zip archive of pickles


def _index(file: Path) -> dict[str, str]:
    """Return the file name of each tensor from an index; refuse files outside the index's directory."""
    try:
        names = read_object(file).get("weight_map")
    except (FileNotFoundError, Unreadable) as error:
        raise ModelError(f"{file} cannot be read: {error}", "Copy it again.") from error
    if not isinstance(names, dict):
        raise ModelError(f"{file} does not map tensors to files", "Copy it again.")
    for name in names.values():
        if type(name) is not str or Path(name).suffix != ".safetensors" or Path(name).name != name:
            raise ModelError(
                f"{file} names {name!r}: expected a *.safetensors file beside it",
                "Repair the index, or convert the weights to safetensors first.",
            )
    return names


def _pickled(path: Path, name: str) -> ModelError:
    return ModelError(
        f"{path} contains pickled weights ({name}), which can run code when opened",
        "Convert them to safetensors first.",
    )


def require_gguf() -> None:
    if importlib.util.find_spec("gguf") is None:
        raise ModelError("GGUF files need the package gguf", "pip install 'floatscope[gguf]'")


def tokenizer(path: Path, family: Family) -> Any:
    """Return the checkpoint's tokenizer as an object of a transformers class; None if it has none."""
    remedy = "Copy its files again, or pass tokenizer=... to load."
    folder = path if path.is_dir() else path.parent
    with foreign(ModelError, f"{path}: the tokenizer cannot be read", remedy):
        tokenizer_bounds.require_bounded_files(folder)
        loaded = _tokenizer(path, family)
        if loaded is not None and not (folder / "tokenizer.json").exists():
            tokenizer_bounds.require_bounded(loaded, str(path))
        if loaded is not None:  # some damage appears only when the tokenizer is used
            loaded.decode(loaded("a b", add_special_tokens=False)["input_ids"])
            _require_mask_held(path, loaded)
        return loaded


def _require_mask_held(path: Path, tokenizer: Any) -> None:
    """Refuse a mask token that is not in the vocabulary: transformers would silently give it a new id."""
    token = getattr(tokenizer, "mask_token", None)
    vocabularies = [
        path / name for name in ("tokenizer.json", "vocab.json") if (path / name).exists()
    ]
    if token is None or not vocabularies:
        return
    spelled = {json.dumps(token, ensure_ascii=plain).encode() for plain in (True, False)}
    added = path / "added_tokens.json"
    for file in (*vocabularies, added) if added.exists() else vocabularies:
        content = file.read_bytes()
        if any(spelling in content for spelling in spelled):
            return
    config = path / "tokenizer_config.json"
    listed = read_json(config).get("added_tokens_decoder") if config.exists() else None
    if token not in [token_info["content"] for token_info in (listed or {}).values()]:
        raise ModelError(
            f"{path}: the tokenizer names {token!r:.80} as its mask, which is not in {vocabularies[0].name}",
            "Correct mask_token in special_tokens_map.json and tokenizer_config.json.",
        )


def _tokenizer(path: Path, family: Family) -> Any:
    if path.suffix == ".gguf":
        # AutoTokenizer would read the whole header a second time to choose the same class.
        return transformers.PreTrainedTokenizerFast.from_pretrained(
            path.parent, gguf_file=path.name, **NO_CODE
        )
    if (path / "tokenizer.json").exists():
        return transformers.PreTrainedTokenizerFast.from_pretrained(path, **NO_CODE)
    if family.tokenizer and (path / "vocab.json").exists():
        return getattr(transformers, family.tokenizer).from_pretrained(path, **NO_CODE)
    if (path / "tokenizer.model").exists() or (path / "vocab.json").exists():
        return transformers.AutoTokenizer.from_pretrained(path, **NO_CODE)
    if family.tokenizer and (file := vocabulary_files.vocabulary_of(path)):
        paths = {name: path / name for name in vocabulary_files.SETTINGS}
        settings = {
            name: read_json(setting_path) if setting_path.exists() else {}
            for name, setting_path in paths.items()
        }
        return vocabulary_files.read_tokenizer(file, family.tokenizer, settings)
    return None

"""Hostile checkpoints from a seed: tiny valid ones of every family and of GGUF, then one to three changes.

`checkpoint(seed, directory)` writes one and says what is wrong with it; `attempt(directory)` loads it and
decodes two tokens. Either it works, or the error is one of Floatscope's own; no other exception, no more
than LIMIT seconds of work, and no code of the checkpoint's runs (every one brings a canary). 25 of them
are tried with the tests, more by

    python -m tests.attacks.hostile_checkpoints --count 200

It does not judge what a changed model answers: damaged weights that are still a model are a model.
"""

import argparse
import atexit
import json
import math
import os
import pickle
import random
import shutil
import signal
import struct
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

LIMIT = 10  # seconds of this process's own work, whatever else the machine does
SHAPE = {"layers": 2, "width": 16, "heads": 2, "kv_heads": 1, "ffn": 24, "context": 64}
FAMILIES = ("LLaDA", "Dream", "Llama", "Qwen2", "Qwen3")
KINDS = (*FAMILIES, "sharded", "GGUF", "GGUF")
ADAPTER = "adapter_config.json"
CANARY = "ran"  # the file that evil.py and the pickles would leave
VALUES = (
    *(None, True, False, 0, 1, -1, 3, 2**31, 2**62, 10**6, 10**30, 0.5, math.nan, math.inf),
    *("", "a", "16", "../x", "\ud800", "é" * 500, [], [1], [[]], {}, {"a": 1}),
)
TEMPLATES = (
    "{{ messages[0]['content'] }}",  # as it should be
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch ' ~ '@') }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set n = namespace(x='a' * 9999) %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{{ 'a'.ljust(9999999999) }}",
    "{{ 9 ** 9 ** 9 }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ raise_exception('no') }}",
    "{{ messages[0]['content'] * 3 }}",
    "{% if",
    "nothing of the prompt",
    "{{ messages[7].x.y }}",
)


# What valid ones look like


@cache
def _valid():
    """Every kind once, in a folder that is removed at the end."""
    from floatscope.models import tiny

    sys.path.append(str(Path(__file__).parents[1]))
    import tiny_gguf

    folder = Path(tempfile.mkdtemp(prefix="valid-"))
    shape = tiny.Shape(**SHAPE)
    for family in FAMILIES:
        tiny.write(family, folder / family, shape)
    tiny.write("Llama", folder / "sharded", shape, shards=2)
    tiny_gguf.write(folder / "GGUF", shape=shape)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


# What is done to them


def _files(folder):
    return sorted(p for p in folder.iterdir() if p.is_file() and p.name != "evil.py")


def _truncated(draw, folder):
    file = draw.choice(_files(folder))
    size = file.stat().st_size
    keep = draw.choice([0, 1, 4, 8, 9, 24, size - 1, draw.randrange(size + 1)])
    file.write_bytes(file.read_bytes()[:keep])
    return f"{file.name} cut after {keep} of {size} bytes"


def _flipped(draw, folder):
    file = draw.choice(_files(folder))
    content = bytearray(file.read_bytes())
    if not content:
        return f"{file.name} is empty already"
    reach = min(len(content), draw.choice([32, 400, 4000, len(content)]))
    at = [draw.randrange(reach) for _ in range(draw.choice([1, 1, 3, 30]))]
    for place in at:
        content[place] ^= 1 << draw.randrange(8)
    file.write_bytes(content)
    return f"{file.name} with {len(at)} bits flipped, the first at byte {at[0]}"


def _replaced(draw, folder):
    file = draw.choice(_files(folder))
    mark = str(folder / CANARY)

    class Evil:
        def __reduce__(self):
            return Path.touch, (Path(mark),)

    empty = (b"", b"\x00" * 64, b"\xff\xfe" * 9, b"[]", b"{}", b"null", b"3", b'"a"', b"NaN")
    deep = (b"[" * 1000 + b"]" * 1000, b'{"a":' * 100_000)
    heads = (struct.pack("<Q", 2**62) + b"{}", b"GGUF" + b"\xff" * 40, b"GGUF\3\0\0\0" + bytes(16))
    new = draw.choice([*empty, *deep, *heads, pickle.dumps(Evil())])
    file.write_bytes(new)
    return f"{file.name} is {new[:20]!r}, {len(new)} bytes"


def _linked(draw, folder):
    file = draw.choice(_files(folder))
    to = draw.choice([file.name, "nowhere", ".", "/dev/null", "/dev/zero", "config.json"])
    file.unlink()
    file.symlink_to(to)
    return f"{file.name} is a link to {to}"


def _made_a_folder(draw, folder):
    file = draw.choice(_files(folder))
    file.unlink()
    file.mkdir()
    return f"{file.name} is a folder"


def _removed(draw, folder):
    file = draw.choice(_files(folder))
    file.unlink()
    return f"{file.name} is missing"


def _json(draw, folder):
    """A field somewhere in one of the JSON files: removed, or another value in its place."""
    names = [p for p in _files(folder) if p.suffix == ".json"]
    weighted = [p for p in names for _ in range(4 if p.name == "config.json" else 1)]
    if not weighted:
        return _gguf_field(draw, folder)
    file = draw.choice(weighted)
    try:
        content = json.loads(file.read_text())
        where, key = _place(draw, content)
    except (ValueError, RecursionError, IndexError):
        return f"{file.name} has no field to change"
    if draw.random() < 0.2:
        del where[key]
        said = "removed"
    else:
        where[key] = value = _value(draw)
        said = f"= {value!r:.40}"
    file.write_text(json.dumps(content))
    return f"{file.name}: {key!r:.40} {said}"


def _place(draw, content):
    """A container and a key in it, any depth; the outermost more often."""
    key = draw.choice(list(content) if isinstance(content, dict) else range(len(content)))
    inner = content[key]
    if isinstance(inner, dict | list) and inner and draw.random() < 0.7:
        return _place(draw, inner)
    return content, key


def _value(draw):
    if draw.random() < 0.1:
        deep = []
        for _ in range(draw.choice([5, 900])):
            deep = [deep]
        return deep
    return draw.choice(VALUES)


def _new_field(draw, folder):
    """What transformers, not the architecture, would read."""
    file = folder / "config.json"
    if not file.is_file():
        return _gguf_field(draw, folder)
    name = draw.choice(
        "num_labels return_dict output_attentions quantization_config attn_implementation to_dict "
        "_attn_implementation per_layer_config layer_types rope_scaling rope_parameters is_causal "
        "is_encoder_decoder torch_dtype sub_configs head_dim hidden_act pretraining_tp use_cache "
        "sliding_window use_sliding_window id2label __class__ name_or_path attention_bias "
        "partial_rotary_factor eos_token_id mask_token_id tie_word_embeddings".split()
    )
    try:
        content = dict(json.loads(file.read_text()))
    except (ValueError, TypeError, RecursionError):
        return "config.json is none already"
    content[name] = value = _value(draw)
    file.write_text(json.dumps(content))
    return f"config.json: {name} = {value!r:.40}"


def _template(draw, folder):
    template = draw.choice(TEMPLATES).replace("@", str(folder / CANARY))
    file = folder / "tokenizer_config.json"
    if draw.random() < 0.5 or not file.is_file():
        (folder / "chat_template.jinja").write_text(template)
    else:
        try:
            content = dict(json.loads(file.read_text()))
        except (ValueError, TypeError, RecursionError):
            content = {}
        file.write_text(json.dumps({**content, "chat_template": template}))
    return f"chat template {template[:50]!r}"


def _tokenizer_part(draw, folder):
    """What the tokenizers library refuses, chews on, or panics at."""
    file = folder / "tokenizer.json"
    try:
        content = dict(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return _template(draw, folder)
    pattern = {
        "Regex": draw.choice(["(", "(a+)+$", "\\", "(?<=a+)b", "[", "(?P<x>", "a{99999999}"])
    }
    name, part = draw.choice(
        [
            ("pre_tokenizer", {"type": "Split", "pattern": pattern, "behavior": "Isolated"}),
            ("normalizer", {"type": "Replace", "pattern": pattern, "content": "a"}),
            ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
            ("pre_tokenizer", {"type": "FixedLength", "length": 0}),
            ("truncation", {"strategy": "LongestFirst", "max_length": 1, "stride": 5}),
            ("normalizer", {"type": "Lowercase"}),
        ]
    )
    extra = {"Split": {"invert": False}, "LongestFirst": {"direction": "Right"}}
    content[name] = part | extra.get(part.get("type") or part.get("strategy"), {})
    file.write_text(json.dumps(content))
    return f"tokenizer.json: {name} {part!r:.90}"


def _tokenizer_bomb(draw, folder):
    """Rules that multiply a text, or take long over it."""
    file = folder / "tokenizer.json"
    try:
        content = dict(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return _template(draw, folder)
    letter, times, count = (
        draw.choice("aeHo "),
        draw.choice([2, 9, 300]),
        draw.choice([1, 3, 9, 40]),
    )
    pattern = draw.choice([{"String": letter}, {"Regex": letter}, {"Regex": f"{letter}*"}])
    replace = {"type": "Replace", "pattern": pattern, "content": letter * times}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    piece = {"Sequence": {"id": "A", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [piece] * times, "special_tokens": {}}
    pair = [piece, {"Sequence": {"id": "B", "type_id": 0}}]
    slow = draw.choice(
        ["(l+)+$", "(l|l)*o(?!l)z", "l*l*(?!l)(?!§)q", "((l{9}){9}){9}", "(?<x>l+)+\\k<x>z"]
    )
    split = {"type": "Split", "pattern": {"Regex": slow}, "behavior": "Isolated", "invert": False}
    name, inner, rule = draw.choice(
        [
            ("normalizer", "normalizers", replace),
            ("decoder", "decoders", replace),
            ("pre_tokenizer", "pretokenizers", level | {"use_regex": True}),
            ("post_processor", "processors", template | {"pair": pair}),
            ("normalizer", "normalizers", {"type": "Prepend", "prepend": letter * times}),
            ("pre_tokenizer", "pretokenizers", split),
        ]
    )
    content[name] = {"type": "Sequence", inner: [rule] * count}
    if name == "decoder":
        content[name][inner].insert(0, level | {"use_regex": True})
    file.write_text(json.dumps(content))
    return f"tokenizer bomb: {name}, {count} × {rule!r:.90}"


def _adapter_beside(draw, folder):
    """A file that transformers, with PEFT installed, would apply without being asked."""
    base = draw.choice([None, "../x", "owner/name", str(folder)])
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    text = draw.choice(
        [json.dumps(config | {"base_model_name_or_path": base}), "{}", "", "[" * 999]
    )
    (folder / ADAPTER).write_text(text)
    if draw.random() < 0.5:
        weights = folder / "model.safetensors"
        copied = weights.read_bytes() if weights.is_file() else b""
        (folder / "adapter_model.safetensors").write_bytes(copied)
    return f"adapter beside the weights: {text[:40]!r}"


def _other_weights(draw, folder):
    """A pickle, and a config that has transformers read it."""
    config = folder / "config.json"
    mark = str(folder / CANARY)

    class Evil:
        def __reduce__(self):
            return Path.touch, (Path(mark),)

    name = draw.choice(["adapter_model.bin", "pytorch_model.bin", "other.safetensors", "../x.bin"])
    try:
        content = dict(json.loads(config.read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return _removed(draw, folder)
    (folder / Path(name).name).write_bytes(pickle.dumps(Evil()))
    config.write_text(json.dumps(content | {"transformers_weights": name}))
    return f"other weights: config.json names {name}"


def _layer_types(draw, folder):
    config = folder / "config.json"
    try:
        content = dict(json.loads(config.read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return _gguf_field(draw, folder)
    kinds = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention", "x", 3)
    content["layer_types"] = types = [draw.choice(kinds) for _ in range(SHAPE["layers"])]
    content["sliding_window"] = draw.choice([None, 0, 4, 4096])
    config.write_text(json.dumps(content))
    return f"layer types: {types}"


def _mask_is_end(draw, folder):
    """The mask is also an end token, by one file or another."""
    from floatscope.models import tiny

    name = draw.choice(["config.json", "generation_config.json", "floatscope.json"])
    file = folder / name
    try:
        content = dict(json.loads(file.read_text())) if file.is_file() else {}
    except (ValueError, TypeError, RecursionError):
        return f"{name} is none already"
    ends = {"generation_config.json": {"eos_token_id": [tiny.MASK]}}
    both = {"config.json": {"mask_token_id": tiny.END}, "floatscope.json": {"mask_id": tiny.END}}
    file.write_text(json.dumps(content | (ends | both)[name]))
    return f"mask is an end token: {name}"


def _scaled(draw, folder):
    """Weights so large that sums of them overflow."""
    from safetensors.torch import load_file, save_file

    files = [file for file in folder.glob("*.safetensors") if file.is_file()]
    scale = draw.choice([10, 1e4, 1e9, 1e20])
    try:
        for file in files:
            save_file({k: v * scale for k, v in load_file(file).items()}, file, {"format": "pt"})
    except Exception:
        return "weights are damaged already"
    return f"weights times {scale:g}" if files else _gguf_field(draw, folder)


def _gguf_field(draw, folder):
    """A number in the header of a GGUF file, found by its name."""
    files = sorted(p for p in folder.glob("*.gguf") if p.is_file())
    if not files:
        return _truncated(draw, folder)
    content = bytearray(files[0].read_bytes())
    name = draw.choice(
        "llama.block_count llama.embedding_length llama.attention.head_count llama.context_length "
        "llama.attention.head_count_kv llama.feed_forward_length llama.vocab_size "
        "tokenizer.ggml.tokens tokenizer.ggml.eos_token_id general.architecture "
        "llama.rope.freq_base token_embd.weight".split()
    )
    at = content.find(name.encode()) + len(name)
    offset = draw.choice([0, 4, 4, 4, 8, 12])
    value = draw.choice([0, 1, 3, 10**6, 2**31, 2**32 - 1])
    content[at + offset : at + offset + 4] = struct.pack("<I", value)
    files[0].write_bytes(content)
    return f"GGUF: {value} at {name} + {offset}"


CHANGES = (
    *(
        _truncated,
        _flipped,
        _replaced,
        _linked,
        _made_a_folder,
        _removed,
        _template,
        _tokenizer_part,
    ),
    *(_json, _json, _json, _json, _new_field, _new_field, _gguf_field),
    *(_tokenizer_bomb, _tokenizer_bomb, _adapter_beside, _other_weights),
    *(_layer_types, _mask_is_end, _scaled),
)


def checkpoint(seed, directory):
    """Write the hostile checkpoint of this seed; what is wrong with it, in words."""
    draw = random.Random(seed)
    kind = draw.choice(KINDS)
    folder = Path(shutil.copytree(_valid() / kind, directory))
    mark = folder / CANARY
    (folder / "evil.py").write_text(
        f"from pathlib import Path\nPath({str(mark)!r}).touch()\nclass Evil:\n    pass\n"
    )
    if draw.random() < 0.3:  # in the file's own words, where transformers would look
        names = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoTokenizer")
        for name in ("config.json", "tokenizer_config.json"):
            if (folder / name).is_file() or kind == "GGUF":
                known = folder / name
                content = json.loads(known.read_text()) if known.is_file() else {}
                content["auto_map"] = dict.fromkeys(names, "evil.Evil")
                known.write_text(json.dumps(content))
    said = []
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        if _files(folder):
            said.append(draw.choice(CHANGES)(draw, folder))
    return f"{kind}: {'; '.join(said)}"


# What must come of it


class Hung(BaseException):
    """Too much work; not an Exception, so that nothing on the way takes it for its own."""


def attempt(directory):
    """("works" | the error's class, its text); raises whatever is not Floatscope's own error."""
    import floatscope as fs

    directory = Path(directory)
    files = sorted(directory.glob("*.gguf"))
    where = files[0] if files else directory

    def stop(*_):
        raise Hung(f"more than {LIMIT} seconds")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other libraries' words about a damaged file
            model = fs.load(where)
            sampler = (
                fs.Confidence(length=2, steps=2)
                if model.is_diffusion
                else fs.Autoregressive(length=2)
            )
            prompt = "Hello" if model.tokenizer is not None else [5, 6, 7]
            model.generate(prompt, sampler)
        outcome = "works", ""
    except fs.FloatscopeError as error:
        outcome = type(error).__name__, str(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert not (directory / CANARY).exists(), "code of the checkpoint ran"
    mixed = outcome[0] == "works" and not files and (directory / ADAPTER).exists()
    assert not mixed, "an adapter that was not named is passed over, or applied"
    return outcome


def main(count=200, seed=0, *, verbose=False):
    """Counts by outcome, and what went wrong: a list of (seed, description, traceback)."""
    counts, failures = Counter(), []
    for n in range(seed, seed + count):
        with tempfile.TemporaryDirectory() as folder:
            said = checkpoint(n, Path(folder) / "model")
            try:
                kind, text = attempt(Path(folder) / "model")
            except BaseException as error:  # a panic of a Rust library is not an Exception
                if isinstance(error, KeyboardInterrupt):
                    raise
                kind, text = "FAILURE", repr(error)
                failures.append((n, said, traceback.format_exc()))
        counts[said.split(":")[0], kind] += 1
        if verbose:
            print(f"{n:5d}  {kind:12s} {said}\n       {text[:300]}", flush=True)
    return counts, failures


def _command():
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--count", type=int, default=200)
    given.add_argument("--seed", type=int, default=0)
    given.add_argument("--verbose", action="store_true")
    options = given.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    counts, failures = main(options.count, options.seed, verbose=options.verbose)
    outcomes = sorted({outcome for _, outcome in counts})
    print("".join(f"{name:>14s}" for name in ("checkpoint", *outcomes)))
    for kind in dict.fromkeys(KINDS):
        numbers = [counts[kind, outcome] for outcome in outcomes]
        print(f"{kind:>14s}" + "".join(f"{number:14d}" for number in numbers))
    for n, said, trace in failures:
        print(f"\nseed {n}, {said}\n{trace}")
    print(f"{options.count} hostile checkpoints, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(_command())

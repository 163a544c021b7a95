"""A model without its weights: what config.json, floatscope.json and the tokenizer say of it.

Enough to refuse a sampler, a setting or a prompt that cannot work, before a worker starts or a network
is read. `loading` settles the same facts by the same function, so that the two cannot differ.
"""

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..errors import ModelError
from ..untrusted import read_object
from . import opening, sizes, source, special, stated, twin
from .family import Direction, Family, Grid
from .pair import PAIR
from .spec import ModelSpec
from .stated import Stated


@dataclass(frozen=True)
class Outline:
    """What decoding needs to know of a model before it decodes."""

    name: str
    tokenizer: Any
    direction: Direction
    block: int | None
    grid: Grid
    mask_id: int | None
    end_ids: tuple[int, ...]
    chat: bool
    vocab_size: int
    context: int
    special_ids: frozenset[int]

    @property
    def is_diffusion(self) -> bool:
        return self.mask_id is not None


def outlined(spec: ModelSpec) -> Outline | None:
    """The outline of a directory's checkpoint or of an embedded one, refused as `load` would refuse it.

    None where it takes more than a few small files: a hub id, a GGUF file.
    """
    path = Path(spec.where).expanduser()
    if spec.where in PAIR:
        path = source.locate(spec.where, None)
    if not path.is_dir() or source.locate(str(path), None).suffix == ".gguf":
        return None
    said = {field.name: getattr(spec, field.name) for field in fields(Stated)}
    part = twin.adapter(spec.where, spec.adapter)
    asked = Stated(**said).over(stated.read(part).over(stated.read(path)))
    kind, config = opening.described(path, asked.family)
    tokenizer = source.tokenizer(path, kind)
    if asked.direction is None:
        special.require_undisguised(str(path), kind, source.read_config(path), tokenizer)
    name = asked.name or (spec.where if spec.adapter is None else f"{spec.where} + {spec.adapter}")
    facts = settled(name, kind, config, _generation(path), tokenizer, asked)
    ids = {i for i in (*facts["end_ids"], facts["mask_id"]) if i is not None}
    return Outline(
        name=name,
        tokenizer=tokenizer,
        **{key: facts[key] for key in ("direction", "block", "grid", "mask_id", "end_ids", "chat")},
        vocab_size=int(config.vocab_size),
        context=kind.context(config),
        special_ids=frozenset(ids | set(getattr(tokenizer, "all_special_ids", ()))),
    )


def settled(
    name: str, kind: Family, config: Any, generation: Any, tokenizer: Any, asked: Stated
) -> dict[str, Any]:
    """What the network is used as: the fields of a Model beside its network and tokenizer."""
    if getattr(config, "use_sliding_window", False):
        raise ModelError(
            f"{name} uses sliding-window attention, which Floatscope does not measure",
            "Set use_sliding_window to false in its config.json if the context fits the window.",
        )
    block = _block(kind, config, asked)
    toward = _direction(kind, asked.direction, block)
    return {
        "family": replace(kind, direction=toward),
        "direction": toward,
        "block": block,
        "grid": _grid(kind, asked.grid, toward),
        "shift": _shift(kind, config) if asked.shift is None else asked.shift,
        "mask_id": special.mask_id(kind, toward, config, tokenizer, asked.mask_id),
        "end_ids": special.end_ids(config, generation, tokenizer),
        "chat": bool(getattr(tokenizer, "chat_template", None)),
    }


def folder(path: Path) -> Path:
    """Where a floatscope.json would lie."""
    return path if path.is_dir() else path.parent


def _generation(path: Path) -> Any:
    """The end tokens that generation_config.json adds; a damaged one is for transformers to refuse."""
    with suppress(OSError, ValueError):
        said = read_object(path / "generation_config.json")
        return SimpleNamespace(eos_token_id=said.get("eos_token_id"))
    return None


def _block(kind: Family, config: Any, asked: Stated) -> int | None:
    """As the checkpoint or its family says; another is taken only where a direction is given with it."""
    if asked.direction is not None:
        return asked.block
    said = getattr(config, kind.block_field, None) if kind.block_field else None
    said = kind.block if said is None else sizes.whole(said, f"config.json: {kind.block_field}")
    if None not in (said, asked.block) and said != asked.block:
        raise ModelError(
            f"two block sizes: {kind.name} has {said}, and {asked.block} is given",
            f"Leave block out; or say direction='{kind.direction}' with it to overrule.",
        )
    return said if asked.block is None else asked.block


def _direction(kind: Family, given: str | None, block: int | None) -> Direction:
    toward = kind.direction if given is None else None
    if toward is None:
        if given not in list(Direction):
            raise ModelError(f"no direction {given!r}", f"Use one of: {', '.join(Direction)}.")
        toward = Direction(given)
    if toward.in_blocks != (block is not None) or (block is not None and block < 1):
        raise ModelError(
            f"direction {toward} with block {block}",
            "A block-causal model needs block=N, N ≥ 1 (of a checkpoint, its model card says it); the "
            "others take none, unless direction='block-causal' says that it decodes in blocks.",
        )
    return toward


def _shift(kind: Family, config: Any) -> int:
    """As a GGUF file says, else its family."""
    said = getattr(config, "shift_logits", None)
    return kind.shift if said is None else int(said)


def _grid(kind: Family, given: str | None, toward: Direction) -> Grid:
    if given is None:
        return kind.grid
    if given not in list(Grid):
        raise ModelError(f"no grid {given!r}", f"Use one of: {', '.join(Grid)}.")
    if not toward.in_blocks:
        raise ModelError(
            f"grid {given} of a model that is {toward}",
            "Only models in blocks have one: leave it out.",
        )
    return Grid(given)

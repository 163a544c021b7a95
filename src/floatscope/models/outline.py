"""A model without its weights: the facts in config.json, floatscope.json and the tokenizer.

These facts suffice to refuse a sampler, a setting or a prompt that cannot work, before a worker starts or
weights are read. `loading` determines the facts with the same functions, so they cannot differ from those
of the loaded model.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import ModelError
from . import opening, sizes, source, special, stated, twin
from .family import Direction, Family, Grid
from .model import Model
from .pair import PAIR
from .spec import ModelSettings, ModelSpec


def located(
    where: str | Path,
    settings: ModelSettings,
    adapter: str | Path | None,
    revision: str | None = None,
) -> tuple[Path, Path | None, ModelSettings]:
    """Return the paths of a checkpoint and its adapter, and the settings completed by floatscope.json."""
    path, part = source.locate(where, revision), twin.adapter(where, adapter)
    source.require_no_other_adapter(path, part)
    folder = path if path.is_dir() else path.parent
    use = settings.over(stated.read(part).over(stated.read(folder)))
    called = str(where) if adapter is None else f"{where} + {adapter}"
    return path, part, replace(use, name=use.name or called)


def outlined(spec: ModelSpec) -> Model | None:
    """Return the model of a directory or an embedded checkpoint with its weights on the meta device.

    Raises the same errors as `load`. Returns None if this would need more than a few small files, that
    is, for a hub id or a GGUF file.
    """
    if spec.where not in PAIR and not Path(spec.where).expanduser().is_dir():
        return None
    path, _, use = located(spec.where, spec, spec.adapter)
    if path.suffix == ".gguf":
        return None
    kind, net = opening.described(path, use.family)
    tokenizer, generation = source.tokenizer(path, kind), source.read_generation(path)
    if use.direction is None:
        special.require_undisguised(str(path), kind, source.read_config(path), tokenizer)
    facts = settled(str(use.name), kind, net.config, generation, tokenizer, use)
    return Model(name=str(use.name), net=net, tokenizer=tokenizer, **facts)


def settled(
    name: str, kind: Family, config: Any, generation: Any, tokenizer: Any, settings: ModelSettings
) -> dict[str, Any]:
    """Return all fields of a Model but name, network and tokenizer; raise ModelError if they conflict."""
    _require_full_attention(name, kind, config)
    block = _block(kind, config, settings)
    toward = _direction(kind, settings.direction, block)
    mask = special.mask_id(
        kind, toward, config, tokenizer, settings.mask_id, settings.override_mask
    )
    ends = special.end_ids(config, generation, tokenizer)
    if mask in ends:
        raise ModelError(
            f"{name}: mask id {mask} is also an end token, so no answer could end",
            "Give the mask id: load(..., mask_id=...), 'DIR,mask_id=N'; or correct mask_token_id "
            "or eos_token_id in its files.",
        )
    shifts = (
        settings.shift,
        getattr(config, "shift_logits", None),
        kind.shift,
    )  # a GGUF file states `shift_logits`
    return {
        "family": replace(kind, direction=toward),
        "direction": toward,
        "block": block,
        "grid": _grid(kind, settings.grid, toward),
        "shift": int(next(shift for shift in shifts if shift is not None)),
        "mask_id": mask,
        "end_ids": ends,
        "chat": special.chat_template_fits(name, tokenizer, kind.template_arguments),
    }


def _require_full_attention(name: str, kind: Family, config: Any) -> None:
    """Raise ModelError for sliding-window layers unless the family states how far each layer sees."""
    if getattr(config, "use_sliding_window", False):
        raise ModelError(
            f"{name} uses sliding-window attention, which Floatscope does not measure",
            "Set use_sliding_window to false in its config.json if the context fits the window.",
        )
    types = getattr(config, "layer_types", None) or ()
    other = next((t for t in types if t != "full_attention"), None)
    if other is not None and not kind.reaches(config):
        raise ModelError(
            f"{name}: layer_types of its config.json names {other!r:.40}, and Floatscope measures a "
            f"{kind.name} only with full_attention",
            "Write full_attention for every layer if the context fits the window.",
        )


def _block(kind: Family, config: Any, settings: ModelSettings) -> int | None:
    """Return the given block length, or that of checkpoint or family; refuse block lengths that differ.

    If the settings have a direction, their block length is returned, even if None.
    """
    if settings.direction is not None:
        return settings.block
    stored = getattr(config, kind.block_field, None) if kind.block_field else None
    stored = (
        kind.block
        if stored is None
        else sizes.positive_integer(stored, f"config.json: {kind.block_field}")
    )
    if None not in (stored, settings.block) and stored != settings.block:
        raise ModelError(
            f"two block sizes: {kind.name} has {stored}, but {settings.block} is given",
            f"Leave block out; or add direction='{kind.direction}' to override it.",
        )
    return stored if settings.block is None else settings.block


def _direction(kind: Family, direction: str | None, block: int | None) -> Direction:
    toward = kind.direction if direction is None else None
    if toward is None:
        if direction not in list(Direction):
            raise ModelError(f"no direction {direction!r}", f"Use one of: {', '.join(Direction)}.")
        toward = Direction(direction)
    if toward.in_blocks != (block is not None) or (block is not None and block < 1):
        raise ModelError(
            f"direction {toward} with block {block}",
            "A block-causal model needs block=N, N ≥ 1 (of a checkpoint, its model card says it); the "
            "others take none, unless direction='block-causal' says that it decodes in blocks.",
        )
    return toward


def _grid(kind: Family, grid: str | None, toward: Direction) -> Grid:
    if grid is None:
        return kind.grid
    if grid not in list(Grid):
        raise ModelError(f"no grid {grid!r}", f"Use one of: {', '.join(Grid)}.")
    if not toward.in_blocks:
        raise ModelError(
            f"grid {grid} of a model that is {toward}",
            "Only models that decode in blocks have a grid: leave it out.",
        )
    return Grid(grid)

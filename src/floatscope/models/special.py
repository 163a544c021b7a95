"""Special tokens of a model: the mask above all, and where an answer ends."""

from typing import Any

from ..errors import ModelError
from .family import Direction, Family

MASK_NAMES = ("<|mdm_mask|>", "<|mask|>", "<mask>", "[MASK]", "|<MASK>|", "<|MASK|>")
END_NAMES = ("<|eot_id|>", "<|im_end|>", "<|end_of_text|>", "<eos>", "</s>")


def _named(tokenizer: Any, names: tuple[str, ...]) -> list[int]:
    if tokenizer is None:
        return []
    added = tokenizer.get_added_vocab()
    return [added[name] for name in names if name in added]


def mask_id(
    family: Family, direction: Direction, config: Any, tokenizer: Any, given: int | None
) -> int | None:
    """The id of the mask token: as given, else from the config, else the tokenizer, else the family."""
    if direction is Direction.CAUSAL:
        return None
    if given is None:
        from_config = getattr(config, "mask_token_id", None)
        from_tokenizer = getattr(tokenizer, "mask_token_id", None)
        if from_tokenizer is None:
            from_tokenizer = next(iter(_named(tokenizer, MASK_NAMES)), None)
        if None not in (from_config, from_tokenizer) and from_config != from_tokenizer:
            raise ModelError(
                f"two mask ids: config.json says {from_config}, the tokenizer {from_tokenizer}",
                "Say which one is right: load(..., mask_id=...).",
            )
        given = next(
            (m for m in (from_config, from_tokenizer, family.mask_id) if m is not None), None
        )
    vocab = config.vocab_size
    if given is None or not _is_id(given) or not 0 <= given < vocab:
        problem = (
            "no mask id"
            if given is None
            else f"mask id {given!r:.40} outside the vocabulary of {vocab}"
        )
        raise ModelError(
            f"{problem} for a {family.name} model",
            "Put mask_token_id into config.json or mask_id into floatscope.json; or say it with the "
            "model: 'DIR,mask_id=4', load(..., mask_id=4).",
        )
    return int(given)


def require_undisguised(name: str, family: Family, raw: dict[str, Any], tokenizer: Any) -> None:
    """A causal architecture that brings a mask token and other modelling code is something else."""
    named = raw.get("auto_map")
    named = named if isinstance(named, dict) else {}
    classes = {str(c) for k, c in named.items() if k.startswith("AutoModel")}
    own = [c for c in classes if c.rpartition(".")[2] not in family.architectures]
    mask = raw.get("mask_token_id")
    mask = mask if mask is not None else getattr(tokenizer, "mask_token_id", None)
    if family.direction is Direction.CAUSAL and own and mask is not None:
        raise ModelError(
            f"{name} calls itself {family.name}, which is causal, but brings {own[0]} and a mask "
            f"token ({mask})",
            "Say what it is: direction='bidirectional' with shift= and mask_id=, or "
            "direction='causal'.",
        )


def end_ids(config: Any, generation: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends an answer."""
    ids: list[int] = []
    for source, where in (
        (config, "config.json"),
        (generation, "generation_config.json"),
        (tokenizer, "the tokenizer"),
    ):
        value = getattr(source, "eos_token_id", None)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(map(_is_id, values)):
            raise ModelError(
                f"eos_token_id of {where} is {value!r:.80}: expected a token id or a list of them",
                "Correct it, or copy the checkpoint's files again.",
            )
        ids += values
    ids += _named(tokenizer, END_NAMES)
    return tuple(dict.fromkeys(int(v) for v in ids if 0 <= v < config.vocab_size))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

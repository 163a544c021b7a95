"""Find the special tokens of a model: the mask, the end tokens and the tokens of the chat template."""

import re
import warnings
from typing import Any

from ..errors import ModelError, foreign
from ..sequences.chat import rendered
from .family import Direction, Family

MASK_NAMES = ("<|mdm_mask|>", "<|mask|>", "<mask>", "[MASK]", "|<MASK>|", "<|MASK|>")
END_NAMES = ("<|eot_id|>", "<|im_end|>", "<|end_of_text|>", "<eos>", "</s>")
# the form of special tokens of chats, such as <|eot_id|>
_MARKER = re.compile(r"<\|[\w.:/-]{1,60}\|>")
_MARKERS = 100  # largest number of markers of a template that are checked


def _token_ids(tokenizer: Any, names: tuple[str, ...]) -> list[int]:
    if tokenizer is None:
        return []
    added = tokenizer.get_added_vocab()
    return [added[name] for name in names if name in added]


def mask_id(
    family: Family,
    direction: Direction,
    config: Any,
    tokenizer: Any,
    requested: int | None,
    override: bool | None = None,
) -> int | None:
    """Return the mask token's id, as requested or from config, tokenizer or family; None if causal.

    A requested id that contradicts the config or the tokenizer is refused unless `override` is True.
    """
    if direction is Direction.CAUSAL:
        return None
    named = _named_masks(config, tokenizer)
    if requested is not None:
        _require_in_vocabulary(requested, config, family)
        if named and requested not in named.values() and not override:
            where, mask = next(iter(named.items()))
            raise ModelError(
                f"mask_id = {requested}, but {where} names {mask} as the mask token",
                "Leave mask_id out, or confirm it with 'DIR,mask_id=4,override_mask=true', "
                "load(..., mask_id=4, override_mask=True).",
            )
        if not named and not override:
            _warn_of_ordinary(requested, tokenizer)
        return requested
    first, *other_masks = named.values() or [_published_mask(family, config, tokenizer)]
    if other_masks and other_masks[0] != first:
        raise ModelError(
            f"two mask ids: config.json says {first!r:.40}, the tokenizer {other_masks[0]}",
            "State the right one: load(..., mask_id=...).",
        )
    _require_in_vocabulary(first, config, family)
    return first


def _warn_of_ordinary(mask: int, tokenizer: Any) -> None:
    """Warn about a mask id that is an ordinary token, because text with this token is read as masks."""
    if tokenizer is None or mask in tokenizer.added_tokens_decoder:
        return
    token = tokenizer.convert_ids_to_tokens(mask)
    if token is not None:
        warnings.warn(
            f"mask_id = {mask} is the ordinary token {token!r:.40}: text that contains it is read as masks. "
            "Give the id of the mask token that the model was trained with, mask_id=…; or confirm it "
            "with override_mask=true.",
            stacklevel=2,
        )


def _named_masks(config: Any, tokenizer: Any) -> dict[str, Any]:
    """Return the mask ids that a checkpoint names, by source: "config.json" and "the tokenizer"."""
    from_tokenizer = getattr(tokenizer, "mask_token_id", None)
    if from_tokenizer is None:
        from_tokenizer = next(iter(_token_ids(tokenizer, MASK_NAMES)), None)
    masks = {
        "config.json": getattr(config, "mask_token_id", None),
        "the tokenizer": from_tokenizer,
    }
    return {where: mask for where, mask in masks.items() if mask is not None}


def _published_mask(family: Family, config: Any, tokenizer: Any) -> int | None:
    """Return the mask id of the family's published checkpoints, or None; refuse a different vocabulary."""
    mask, size = family.mask_id, int(config.vocab_size)
    if mask is None:
        return None
    if tokenizer is not None:
        token = tokenizer.convert_ids_to_tokens(mask)
        fits, problem = token in MASK_NAMES, f"token {mask} of its tokenizer is {token!r:.40}"
    else:
        fits = not family.mask_vocab or size in family.mask_vocab
        problem = (
            f"theirs have {' or '.join(map(str, family.mask_vocab))} tokens, this vocabulary {size}"
        )
    if not fits:
        raise ModelError(
            f"no mask id: neither config.json nor a tokenizer names a mask token, and the id {mask} "
            f"of published {family.name} checkpoints does not fit: {problem}",
            _SAY_MASK,
        )
    if tokenizer is None:
        warnings.warn(
            f"mask id {mask} is that of published {family.name} checkpoints: this checkpoint has "
            "no tokenizer and names no mask. Use mask_id= to change it",
            stacklevel=2,
        )
    return mask


def _require_in_vocabulary(mask: Any, config: Any, family: Family) -> None:
    vocab = config.vocab_size
    if _is_id(mask) and 0 <= mask < vocab:
        return
    problem = (
        "no mask id" if mask is None else f"mask id {mask!r:.40} outside the vocabulary of {vocab}"
    )
    raise ModelError(f"{problem} for a {family.name} model", _SAY_MASK)


_SAY_MASK = (
    "Put mask_token_id into config.json or mask_id into floatscope.json; or give it with the model: "
    "'DIR,mask_id=4', load(..., mask_id=4)."
)


def chat_template_fits(name: str, tokenizer: Any, arguments: dict[str, Any]) -> bool:
    """Tell whether prompts can use the chat template: it exists, and its markers are single tokens.

    A base model may include the chat template of its instruction-tuned version although its vocabulary
    lacks the template's markers.
    """
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        return False
    markers = dict.fromkeys(_MARKER.findall(str(template)))
    with foreign(ModelError, f"the tokenizer of {name} fails", "Copy its files again."):
        split = [marker for marker in list(markers)[:_MARKERS] if not _is_token(tokenizer, marker)]
    if split:
        try:  # ignore markers in branches that are not rendered, such as for tools
            text = rendered(tokenizer, [{"role": "user", "content": "a"}], name, **arguments)
        except ModelError:
            return True  # the error is raised where the template is used
        split = [marker for marker in split if marker in text]
    if split:
        warnings.warn(
            f"{name}: its chat template writes {', '.join(split[:3])}, which are not tokens of its "
            "tokenizer: prompts are plain text. Use chat=True to apply the template anyway",
            stacklevel=2,
        )
    return not split


def _is_token(tokenizer: Any, text: str) -> bool:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return len(ids) == 1 and ids[0] != tokenizer.unk_token_id


def require_undisguised(name: str, family: Family, raw: dict[str, Any], tokenizer: Any) -> None:
    """Refuse a causal architecture with a mask token and custom code, because such a model is not causal."""
    named = raw.get("auto_map")
    named = named if isinstance(named, dict) else {}
    classes = {str(c) for k, c in named.items() if k.startswith("AutoModel")}
    custom = [c for c in classes if c.rpartition(".")[2] not in family.architectures]
    mask = raw.get("mask_token_id")
    mask = mask if mask is not None else getattr(tokenizer, "mask_token_id", None)
    if family.direction is Direction.CAUSAL and custom and mask is not None:
        raise ModelError(
            f"{name} declares the causal family {family.name}, but also the class {custom[0]} and a mask "
            f"token ({mask})",
            "State the direction: direction='bidirectional' with shift= and mask_id=, or "
            "direction='causal'.",
        )


def end_ids(config: Any, generation: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return every token id that ends an answer, those of config.json first; ModelError if invalid."""
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
    ids += _token_ids(tokenizer, END_NAMES)
    return tuple(dict.fromkeys(int(v) for v in ids if 0 <= v < config.vocab_size))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

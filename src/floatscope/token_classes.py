"""What kind of thing a token is: the classes by which structure and content are told apart."""

import unicodedata
from collections.abc import Sequence

from .classes import FUNCTION_WORDS
from .models import Model
from .prompt import TEMPLATE


def token_class(text: str, token_id: int, region: str, model: Model) -> str:
    """One token's class. Scaffolding is `template` only where it is words: its newlines are whitespace."""
    if token_id < 0:
        return "absent"
    if token_id == model.mask_id:
        return "mask"
    if token_id in model.special_ids:
        return "special"
    bare = text.strip()
    if not bare:
        return "whitespace"
    if all(unicodedata.category(c)[0] in "PS" for c in bare):
        return "punctuation"
    if region == TEMPLATE:
        return "template"
    return "function" if bare.lower() in FUNCTION_WORDS else "content"


def classify(
    ids: Sequence[int], texts: Sequence[str], regions: Sequence[str], model: Model
) -> list[str]:
    return [
        token_class(text, i, region, model)
        for i, text, region in zip(ids, texts, regions, strict=True)
    ]

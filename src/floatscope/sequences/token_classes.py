"""Assign each token a class, which distinguishes tokens of structure from tokens of content."""

import unicodedata
from collections.abc import Sequence

from .prompt import TEMPLATE
from .vocabulary import Vocabulary

CLASSES = (
    "special",
    "mask",
    "whitespace",
    "punctuation",
    "template",
    "function",
    "content",
    "absent",
)

# Classes of structure. The others are content, except masks, which are neither.
STRUCTURAL = ("special", "whitespace", "punctuation", "template", "function")

# English function words.
FUNCTION_WORDS = frozenset(
    """a an the this that these those my your his her its our their and or but nor so yet if
    then than as because while although though unless until since when where whether who
    whom whose which what why how i you he she it we they me him us them mine yours hers
    ours theirs myself himself herself itself themselves of in on at by for with about
    against between into through during before after above below to from up down out off
    over under again further once here there all any both each few more most other some such
    no not only own same too very can will just should now is am are was were be been being
    have has had having do does did doing would could may might must shall also per via
    within without upon among toward towards""".split()
)


def token_class(text: str, token_id: int, region: str, model: Vocabulary) -> str:
    """Return the class of one token. In template text, every word has the class "template"."""
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
    ids: Sequence[int], texts: Sequence[str], regions: Sequence[str], model: Vocabulary
) -> list[str]:
    """Return the class of every token, given the tokens' ids, texts and regions."""
    tokens = list(zip(texts, ids, regions, strict=True))
    classes = {token: token_class(*token, model) for token in set(tokens)}
    return [classes[token] for token in tokens]

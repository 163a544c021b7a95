"""Is the answer right: exact match, contained answer and token F1, the best over the aliases.

Normalisation and F1 are those of SQuAD's official script (`evaluate-v1.1.py`, Rajpurkar et al.
2016, https://worksheets.codalab.org/rest/bundles/0xbcd57bee090b421c982906709c8c27e1/contents/blob/):
lower case, no ASCII punctuation, no English articles, single spaces.

One departure. Where that leaves nothing of an answer ("A", "The The", "?"), the official script
calls every empty prediction right; here such an answer keeps its articles, and failing that its
punctuation. Unicode is compared as written, as there: "é" in one code point is not "e" with an
accent in two. Words are what stands between spaces, so for Chinese or Thai only `exact_match` tells.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

from ..errors import UsageError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@lru_cache(maxsize=100_000)
def normalise(text: str) -> str:
    """SQuAD's `normalize_answer`."""
    return " ".join(_ARTICLES.sub(" ", _bare(text)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 if the normalised prediction is one of the normalised answers."""
    return _best(lambda said, right: float(said == right), prediction, answers)


def contains(prediction: str, answers: Sequence[str]) -> float:
    """1 if the words of an answer stand in the prediction, next to each other and in order."""
    return _best(lambda said, right: float(f" {right} " in f" {said} "), prediction, answers)


def counted(prediction: str, answers: Sequence[str]) -> str:
    """Why it counts as right: the first answer that the prediction contains; "" if none."""
    return next((one for one in answers if contains(prediction, [one])), "")


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over the words of prediction and answer."""
    return _best(_f1, prediction, answers)


def score(prediction: str, answers: Sequence[str]) -> dict[str, float]:
    """All three, by name."""
    return {
        "exact_match": exact_match(prediction, answers),
        "contains": contains(prediction, answers),
        "f1": f1(prediction, answers),
    }


def _best(measure: Callable[[str, str], float], prediction: str, answers: Sequence[str]) -> float:
    if isinstance(answers, str) or not answers or not all(a.strip() for a in answers):
        raise UsageError(
            f"answers = {answers!r}: there is nothing to compare with",
            "Give a list with at least one answer that is not empty.",
        )
    return max(measure(*_comparable(prediction, answer)) for answer in answers)


def _comparable(prediction: str, answer: str) -> tuple[str, str]:
    """Both texts under the strictest normalisation that leaves something of the answer."""
    for form in (normalise, lambda text: " ".join(_bare(text).split())):
        if form(answer):
            return form(prediction), form(answer)
    return " ".join(prediction.lower().split()), " ".join(answer.lower().split())


def _bare(text: str) -> str:
    return text.lower().translate(_NO_PUNCTUATION)


def _f1(said: str, right: str) -> float:
    a, b = said.split(), right.split()
    common = sum((Counter(a) & Counter(b)).values())
    if not common:
        return 0.0
    precision, recall = common / len(a), common / len(b)
    return 2 * precision * recall / (precision + recall)

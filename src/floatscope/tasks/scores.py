"""Score an answer by exact match, contained answer and token F1; the best match of a right answer counts.

Normalisation and F1 are those of SQuAD's official script (`evaluate-v1.1.py`, Rajpurkar et al. 2016,
https://worksheets.codalab.org/rest/bundles/0xbcd57bee090b421c982906709c8c27e1/contents/blob/): lower case, no
ASCII punctuation, no English articles, single spaces.

The scores differ from the official script in one case. If normalisation leaves no text of an answer ("A",
"The The", "?"), the official script accepts every prediction of which normalisation leaves no text. Here the
articles of such an answer are kept, or, if the answer has only punctuation, its punctuation.

Unicode is compared as written, as in the official script: "é" as one code point differs from "e" with a
combining accent. Words are separated by spaces. For languages without spaces between words, such as Chinese
and Thai, only `exact_match` is meaningful.
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
    """Normalise a text as SQuAD's `normalize_answer` does."""
    return " ".join(_ARTICLES.sub(" ", _bare(text)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if the normalised prediction equals one of the normalised answers, else 0.

    Args:
        prediction (str): The model's answer.
        answers (sequence of str): The right answers, one or more.
    """
    return _best(lambda predicted, right: float(predicted == right), prediction, answers)


def contains(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if the prediction contains the words of an answer, in order and without a gap, else 0.

    Args:
        prediction (str): The model's answer.
        answers (sequence of str): The right answers, one or more.
    """
    return _best(
        lambda predicted, right: float(f" {right} " in f" {predicted} "), prediction, answers
    )


def matched_answer(prediction: str, answers: Sequence[str]) -> str:
    """Return the first right answer that the prediction contains; "" if it contains none."""
    return next((answer for answer in answers if contains(prediction, [answer])), "")


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Return token F1, the harmonic mean of precision and recall of the prediction's words.

    Args:
        prediction (str): The model's answer.
        answers (sequence of str): The right answers, one or more; the highest F1 counts.
    """
    return _best(_f1, prediction, answers)


def score(prediction: str, answers: Sequence[str]) -> dict[str, float]:
    """Return exact match, contained answer and token F1, by name.

    Args:
        prediction (str): The model's answer.
        answers (sequence of str): The right answers, one or more.

    Returns:
        {"exact_match": …, "contains": …, "f1": …}, each score from 0 to 1.
    """
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
    """Return both texts after the strictest normalisation that does not leave the answer empty."""
    for form in (normalise, lambda text: " ".join(_bare(text).split())):
        if form(answer):
            return form(prediction), form(answer)
    return " ".join(prediction.lower().split()), " ".join(answer.lower().split())


def _bare(text: str) -> str:
    return text.lower().translate(_NO_PUNCTUATION)


def _f1(predicted: str, right: str) -> float:
    a, b = predicted.split(), right.split()
    common = sum((Counter(a) & Counter(b)).values())
    if not common:
        return 0.0
    precision, recall = common / len(a), common / len(b)
    return 2 * precision * recall / (precision + recall)

"""Describe long answers: similarity to a reference text, repetition, and words from the given text.

Unlike `scores`, this module does not measure whether an answer is right. Every score is a number from 0 to 1,
or NaN if the score does not apply. Texts are compared as lower-case Unicode words without punctuation.
"""

import re
from collections.abc import Sequence

from ..errors import UsageError
from ..sequences.token_classes import FUNCTION_WORDS

_WORD = re.compile(r"[^\W_]+")
_NAN = float("nan")
LONG_SCORES = ("rouge_l", "distinct_4", "grounded")


def rouge_l(prediction: str, references: Sequence[str]) -> float:
    """Return ROUGE-L (Lin 2004): F1 of the longest common subsequence of words; the best reference counts.

    On English text the value equals the `rougeL` of the package rouge-score, without stemming.
    """
    if isinstance(references, str) or not references or not all(map(words, references)):
        raise UsageError(
            f"references = {references!r:.80}: there is nothing to compare with",
            "Give a list with at least one text that has words.",
        )
    predicted, reference_words = words(prediction), map(words, references)
    return max(
        2 * _common(predicted, right) / (len(predicted) + len(right)) for right in reference_words
    )


def distinct(prediction: str, n: int = 4) -> float:
    """Return the share of runs of `n` words that are distinct: 1 without repeats, NaN for fewer words."""
    predicted = words(prediction)
    runs = [tuple(predicted[i : i + n]) for i in range(len(predicted) - n + 1)]
    return len(set(runs)) / len(runs) if runs else _NAN


def grounded(prediction: str, source: str) -> float:
    """Return the share of the prediction's content words that occur in `source`; NaN if it has none."""
    content = [word for word in words(prediction) if word not in FUNCTION_WORDS]
    source_words = set(words(source))
    return sum(word in source_words for word in content) / len(content) if content else _NAN


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return _WORD.findall(text.lower())


def _common(a: list[str], b: list[str]) -> int:
    """Return the length of the longest common subsequence of two lists of words."""
    line = [0] * (len(b) + 1)
    for word in a:
        before = 0  # the line above, one to the left
        for j, other in enumerate(b, 1):
            above = line[j]
            line[j] = before + 1 if word == other else max(above, line[j - 1])
            before = above
    return line[-1]

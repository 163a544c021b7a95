"""What can be said of a long answer: how near it is to a text, how much it repeats, where its words are from.

None of them says that it is right: that is for `scores`. All are shares, NaN where there is nothing to
share. Words are compared as Unicode has them, lower case, without punctuation.
"""

import re
from collections.abc import Sequence

from ..errors import UsageError
from ..sequences.token_classes import FUNCTION_WORDS

_WORD = re.compile(r"[^\W_]+")
_NAN = float("nan")
LONG_SCORES = ("rouge_l", "distinct_4", "grounded")


def rouge_l(prediction: str, references: Sequence[str]) -> float:
    """ROUGE-L (Lin 2004): F1 of the longest common subsequence of words, the best over the references.

    On English text as the package rouge-score gives it without stemming, of each whole text.
    """
    if isinstance(references, str) or not references or not all(map(words, references)):
        raise UsageError(
            f"references = {references!r:.80}: there is nothing to compare with",
            "Give a list with at least one text that has words.",
        )
    said, known = words(prediction), map(words, references)
    return max(2 * _common(said, right) / (len(said) + len(right)) for right in known)


def distinct(prediction: str, n: int = 4) -> float:
    """Share of different ones among the runs of `n` words; 1: nothing is said twice. NaN below n words."""
    said = words(prediction)
    runs = [tuple(said[i : i + n]) for i in range(len(said) - n + 1)]
    return len(set(runs)) / len(runs) if runs else _NAN


def grounded(prediction: str, given: str) -> float:
    """Share of the content words said that stand in the text that was given. NaN without content words."""
    content = [word for word in words(prediction) if word not in FUNCTION_WORDS]
    there = set(words(given))
    return sum(word in there for word in content) / len(content) if content else _NAN


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _common(a: list[str], b: list[str]) -> int:
    """Length of the longest common subsequence, a line of the table at a time."""
    line = [0] * (len(b) + 1)
    for one in a:
        before = 0  # the line above, one to the left
        for j, two in enumerate(b, 1):
            above = line[j]
            line[j] = before + 1 if one == two else max(above, line[j - 1])
            before = above
    return line[-1]

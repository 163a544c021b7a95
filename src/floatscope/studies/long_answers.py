"""Describe the length of answers, and explain why a task cannot test a claim.

The length of an answer is its number of content tokens; end tokens are not counted, because the steps that
reveal them say nothing about the answer. Continuations and summaries are neither right nor wrong, and running
text is a single domain. This module decides no claim.
"""

import numpy as np

from ..stats.digits import digits
from ..tasks.record import Asks
from .claim import Number
from .numbers import number
from .request import Request

LONG = 48  # fewest content tokens of an answer whose steps are compared


def content_tokens(content: np.ndarray, limit: float = np.inf) -> Number | None:
    """Return the mean number of content tokens of an answer, with its interval; None if it is unknown.

    Args:
        content: Number of content tokens by answer; NaN if no end token is known.
        limit: Largest possible number, which bounds the interval.
    """
    return number(content, "content tokens per decoding", "tokens", bounds=(0, limit), smooth=True)


def at_length(length: Number | None) -> str:
    """Return a sentence with the mean length of the answers that decided a claim; "" if it is unknown."""
    if length is None:
        return ""
    note = "" if length.value >= LONG else f", fewer than {LONG}"
    return f"Decided on answers of {digits(length.value)} content tokens on average{note}."


def no_answers(request: Request) -> str:
    """Return why answers to a request's task are neither right nor wrong; "" if they can be scored."""
    if request.asks.has_answer:
        return ""
    task = "a continuation" if request.asks is Asks.CONTINUATION else "a summary"
    return (
        f"{request.data} asks for {task}, which is neither right nor wrong: ask questions that have "
        "answers (--data long:answer, or world:mixed)."
    )


def no_passages(request: Request) -> str:
    """Return why a request's task has no passages to read; "" if it has passages."""
    if request.asks is not Asks.CONTINUATION:
        return ""
    return f"{request.data} has no passages: use --data long:answer."


def one_domain(request: Request) -> str:
    """Return why questions of a request's task cannot be compared with prose; "" if they can."""
    if request.asks is not Asks.CONTINUATION:
        return ""
    return (
        f"{request.data} is running text, like the prose it would be compared with: ask questions "
        "(--data long:answer, or world:nine)."
    )

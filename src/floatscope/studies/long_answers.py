"""How long answers are, and what cannot be asked of long ones, in the words of a claim.

Steps that fill in end tokens say nothing, so an answer's length is its content tokens. A text to go on
with and a summary are neither right nor wrong, and running text is one domain. Nothing is decided here.
"""

import numpy as np

from ..stats.digits import digits
from ..tasks.record import Asks
from .claim import Number
from .numbers import number
from .request import Request

LONG = 48  # content tokens of an answer whose steps are worth comparing


def content_tokens(content: np.ndarray, most: float = np.inf) -> Number | None:
    """The mean over decodings of `most` tokens; None where no end token is known."""
    return number(content, "content tokens per decoding", "tokens", bounds=(0, most), smooth=True)


def at_length(length: Number | None) -> str:
    """What a claim says of the length it was decided at."""
    if length is None:
        return ""
    few = "" if length.value >= LONG else f", fewer than {LONG}"
    return f"Decided on answers of {digits(length.value)} content tokens on average{few}."


def no_answers(request: Request) -> str:
    """Why nothing can be called right on this task; "" if it can."""
    if request.asks.has_answer:
        return ""
    what = "a continuation" if request.asks is Asks.CONTINUATION else "a summary"
    return (
        f"{request.data} asks for {what}, which is neither right nor wrong: ask questions that have "
        "answers (--data long:answer, or world:mixed)."
    )


def no_passages(request: Request) -> str:
    """Why nothing can be read off passages on this task; "" if it can."""
    if request.asks is not Asks.CONTINUATION:
        return ""
    return f"{request.data} has no passages to look at: --data long:answer has."


def one_domain(request: Request) -> str:
    """Why questions cannot be compared with prose on this task; "" if they can."""
    if request.asks is not Asks.CONTINUATION:
        return ""
    return (
        f"{request.data} is running text, and so is the prose it would be compared with: ask questions "
        "(--data long:answer, or world:nine)."
    )

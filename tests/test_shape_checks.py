"""The checks under which all tests run refuse what does not fit an annotation."""

import dataclasses
from typing import Literal

import numpy as np
import pytest
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float
from shape_checks import checked

import floatscope as fs
from floatscope.stats.anchors import Share


@checked
def summed(
    x: Float[np.ndarray, "a b"], y: "Float[np.ndarray, 'b']", out=None
) -> Float[np.ndarray, "a"]:
    return x @ y if out is None else out


@checked
@dataclasses.dataclass
class Pair:
    x: Float[np.ndarray, "a b"]
    y: "Float[np.ndarray, 'b'] | None" = None
    n: int = 0
    later: "NotThereYet" = None


@checked
def spelled(word: "str", split: Literal["train", "held"], later: "NotThereYet" = None) -> "int":
    return len(word) if split == "train" else word


def test_sizes_agree_within_a_call_and_start_anew_in_the_next():
    for n in (3, 4):
        assert summed(np.ones((2, n)), np.ones(n)).tolist() == [n, n]
        assert Pair(np.ones((2, n)), np.ones(n), later=1).later == 1
    assert spelled("three", "train", later=1) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: summed(np.ones((2, 3)), np.ones(2)),
        lambda: summed(np.ones(3), np.ones(3)),
        lambda: summed(np.ones((2, 3), int), np.ones(3)),
        lambda: summed(np.ones((2, 3)), np.ones(3), np.ones(3)),  # the result is of size 3
        lambda: Pair(np.ones((2, 3)), np.ones(2)),
        lambda: Pair(np.ones((2, 3)), n="three"),
        lambda: spelled(3, "train"),
        lambda: spelled("three", "kept"),
        lambda: spelled("three", "held"),  # the result is a text
        lambda: fs.Prompt.rag(3, ["a passage"]),
        lambda: Share("a third"),
    ],
)
def test_what_does_not_fit_is_refused(wrong):
    with pytest.raises(BeartypeCallHintViolation):
        wrong()

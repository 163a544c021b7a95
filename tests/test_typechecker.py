"""The checks that every other test runs under refuse what they should: none of them would say so."""

import dataclasses

import numpy as np
import pytest
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float
from typechecker import jaxtyped

import floatscope as fs
from floatscope.stats.anchors import Share


@jaxtyped(typechecker=None)
def summed(
    x: Float[np.ndarray, "a b"], y: "Float[np.ndarray, 'b']", out=None
) -> Float[np.ndarray, "a"]:
    return x @ y if out is None else out


@jaxtyped(typechecker=None)
@dataclasses.dataclass
class Pair:
    x: Float[np.ndarray, "a b"]
    y: "Float[np.ndarray, 'b'] | None" = None
    n: int = 0
    later: "NotThereYet" = None


def test_sizes_agree_within_a_call_and_start_anew_in_the_next():
    for n in (3, 4):
        assert summed(np.ones((2, n)), np.ones(n)).tolist() == [n, n]
        assert Pair(np.ones((2, n)), np.ones(n), later=1).later == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: summed(np.ones((2, 3)), np.ones(2)),
        lambda: summed(np.ones(3), np.ones(3)),
        lambda: summed(np.ones((2, 3), int), np.ones(3)),
        lambda: summed(np.ones((2, 3)), np.ones(3), np.ones(3)),
        lambda: Pair(np.ones((2, 3)), np.ones(2)),
        lambda: Pair(np.ones((2, 3)), n="three"),
        lambda: fs.Prompt.rag(3, ["a passage"]),
        lambda: Share("a third"),
    ],
)
def test_what_does_not_fit_is_refused(wrong):
    with pytest.raises(BeartypeCallHintViolation):
        wrong()

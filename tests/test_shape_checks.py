"""The checks that every other test runs under refuse what they should: none of them would say so."""

import dataclasses
from typing import Any, Literal

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
        lambda: summed(np.ones((2, 3)), np.ones(3), np.ones(3)),
        lambda: Pair(np.ones((2, 3)), np.ones(2)),
        lambda: Pair(np.ones((2, 3)), n="three"),
        lambda: spelled(3, "train"),
        lambda: spelled("three", "kept"),
        lambda: spelled("three", "held"),  # a text where a number was said
        lambda: fs.Prompt.rag(3, ["a passage"]),
        lambda: Share("a third"),
    ],
)
def test_what_does_not_fit_is_refused(wrong):
    with pytest.raises(BeartypeCallHintViolation):
        wrong()


def test_a_call_like_one_that_was_right_is_wrong_if_its_result_is():
    """What was checked is not checked again; what comes out then still is."""
    outs = iter([np.ones(2), np.ones(2), np.ones(3)])

    @checked
    def column(x: Float[np.ndarray, "a b"], *, rows: int = 1) -> Float[np.ndarray, "a"]:
        return next(outs)

    x = np.ones((2, 3))
    assert len(column(x, rows=2)) == len(column(x, rows=5)) == 2
    with pytest.raises(BeartypeCallHintViolation):
        column(x, rows=7)
    with pytest.raises(BeartypeCallHintViolation):
        column(x, rows="two")


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.astype(int),
        lambda x: x[0],
        lambda x: x.tolist(),
        lambda x: None,
    ],
)
def test_a_call_is_alike_only_in_types_dtypes_and_shapes(change):
    x = np.ones((2, 3))
    for _ in range(2):
        summed(x, np.ones(3))
    with pytest.raises(BeartypeCallHintViolation):
        summed(change(x), np.ones(3))


def test_long_lists_are_checked_anew():
    @checked
    def counted(x: Float[np.ndarray, "a"], names: list[str]) -> int:
        return len(names)

    x, names = np.ones(2), ["a"] * 20
    assert counted(x, names) == counted(x, names) == 20
    with pytest.raises(BeartypeCallHintViolation):
        counted(x, [1] * 20)
    assert counted(x, ["a", "b"]) == counted(x, ["c", "d"])
    with pytest.raises(BeartypeCallHintViolation):
        counted(x, [1, 2])


@checked
def told(x: Float[np.ndarray, "a"], sizes: dict[str, int], more: dict[str, Any]) -> int:
    return len(sizes)


@checked
def chosen(x: Float[np.ndarray, "a"], more: dict[str, Any]) -> int:
    return len(more)


def test_what_a_dictionary_holds_is_checked_every_time():
    """Where the annotation says what; its keys in any case."""
    for _ in range(2):
        assert told(np.ones(2), {"a": 1}, {"b": "any"}) == 1
        assert chosen(np.ones(2), {"a": 1}) == 1
    with pytest.raises(BeartypeCallHintViolation):
        told(np.ones(2), {"a": "1"}, {})
    with pytest.raises(BeartypeCallHintViolation):
        chosen(np.ones(2), {1: 1})
    with pytest.raises(BeartypeCallHintViolation):
        chosen(np.ones(2), ["a"])

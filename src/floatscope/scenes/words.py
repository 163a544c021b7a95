"""Pack the words of a scene: the token at each position and step, and its changes, without attention."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..trace import Trace
from .codec import pack_index

_TITLE_LENGTH = 160


def title_of(prompt: Sequence[str], regions: Sequence[str]) -> str:
    """Return the title of an example: its question or, without one, its prompt, cut to 160 characters."""
    question = "".join(t for t, r in zip(prompt, regions, strict=False) if r == "question")
    title = " ".join((question or "".join(prompt)).split())
    return title if len(title) <= _TITLE_LENGTH else title[: _TITLE_LENGTH - 1] + "…"


def example_name(prompt: Sequence[str]) -> str:
    """Return a checksum of a prompt's text, as a name that traces of several models share."""
    return f"{zlib.crc32(''.join(prompt).encode('utf-8', 'replace')):08x}"


def words(trace: Trace, steps: np.ndarray) -> dict[str, Any]:
    """Return the packed tokens, token classes, masks and changes of a trace at `steps`.

    `steps` are indices of kept steps.
    """
    data, ids = trace.data, trace.canvas.values  # (state, key)
    ticks = data["step"].values[steps]
    spelled = _spelled(trace)
    change = trace.change.values
    at_tick, at_key = np.nonzero(change)
    became = ids[at_tick + 1, at_key] if len(at_tick) else np.zeros(0, int)
    # In order of appearance: as a run tells of its words, step by step.
    events = [became[at_tick == tick] for tick in ticks]
    appear = [part for pair in zip(ids[ticks], events, strict=True) for part in pair]
    token_ids, first = np.unique(np.concatenate([*appear, became, ids[-1]]), return_index=True)
    token_ids = token_ids[np.argsort(first)]
    token_ids = token_ids[token_ids >= 0]
    place = {int(token): i for i, token in enumerate(token_ids)} | {-1: -1}
    places_of = np.vectorize(lambda token: place[int(token)], otypes=[int])
    classes = list(dict.fromkeys(map(str, data["token_class"].values[steps].ravel())))
    changes = np.stack(
        [at_tick, at_key, change[at_tick, at_key], places_of(became) if len(became) else became],
        axis=1,
    )
    return {
        # A step that was not kept may have revealed a token, and a later one taken it back.
        "vocabulary": [spelled.get(int(i), f"⟨token {i}⟩") for i in token_ids],
        "canvas": pack_index(places_of(ids[ticks])),
        "result": pack_index(places_of(ids[-1])),
        "changes": pack_index(changes),  # (event, [tick, key, kind, word it became])
        "classes": classes,
        "class": pack_index(
            [[classes.index(str(c)) for c in row] for row in data["token_class"].values[steps]],
            "uint8",
        ),
        "masked": pack_index(data["masked"].values[steps].astype(int), "uint8"),
    }


def _spelled(trace: Trace) -> dict[int, str]:
    """Return the text of each token id in the kept steps and in the result; the text of the mask is ""."""
    data, ids = trace.data, trace.canvas.values
    shown_ids = ids[data["step"].values].ravel()
    spelled = dict(zip(shown_ids.tolist(), map(str, data["token"].values.ravel()), strict=True))
    final = zip(ids[-1].tolist(), map(str, data["final_token"].values), strict=True)
    return spelled | {int(trace.info["mask_id"]): ""} | dict(final)

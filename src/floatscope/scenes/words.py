"""The words of a scene: which token stood where at each step, and what became of it. No attention."""

import zlib
from typing import Any

import numpy as np

from ..trace import Trace
from .codec import pack_index

_TITLE_LENGTH = 160


def prompt_text(trace: Trace) -> str:
    """Return the prompt as its tokens spell it."""
    length = int(trace.info["prompt_length"])
    return "".join(map(str, trace.data["final_token"].values[:length]))


def title_of(trace: Trace) -> str:
    """Return the question, or else the beginning of the prompt."""
    tokens, regions = trace.data["final_token"].values, trace.data["region"].values
    question = "".join(str(t) for t, r in zip(tokens, regions, strict=True) if r == "question")
    return short_title(question or prompt_text(trace))


def short_title(text: str) -> str:
    title = " ".join(text.split())
    return title if len(title) <= _TITLE_LENGTH else title[: _TITLE_LENGTH - 1] + "…"


def example_of(trace: Trace) -> str:
    """Return a name that two models' traces of one prompt share."""
    return example_name(prompt_text(trace))


def example_name(prompt: str) -> str:
    return f"{zlib.crc32(prompt.encode('utf-8', 'replace')):08x}"


def words(trace: Trace, steps: np.ndarray) -> dict[str, Any]:
    """Return tokens per step, regions, classes, masks and changes, for these indices of kept steps."""
    data, ids = trace.data, trace.canvas.values  # (state, key)
    ticks = data["step"].values[steps]
    spelled = _spelled(trace)
    change = trace.change.values
    at_tick, at_key = np.nonzero(change)
    became = ids[at_tick + 1, at_key] if len(at_tick) else np.zeros(0, int)
    known = np.unique(np.concatenate([ids[ticks].ravel(), ids[-1], became]))
    known = known[known >= 0]
    place = {int(token): i for i, token in enumerate(known)} | {-1: -1}
    look = np.vectorize(lambda token: place[int(token)], otypes=[int])
    regions = list(dict.fromkeys(map(str, data["region"].values)))
    classes = list(dict.fromkeys(map(str, data["token_class"].values[steps].ravel())))
    changes = np.stack(
        [at_tick, at_key, change[at_tick, at_key], look(became) if len(became) else became], axis=1
    )
    return {
        # A step that was not kept may have revealed a token, and a later one taken it back.
        "vocabulary": [spelled.get(int(i), f"⟨token {i}⟩") for i in known],
        "canvas": pack_index(look(ids[ticks])),
        "result": pack_index(look(ids[-1])),
        "changes": pack_index(changes),  # (event, [tick, key, kind, word it became])
        "regions": regions,
        "region": pack_index([regions.index(str(r)) for r in data["region"].values]),
        "classes": classes,
        "class": pack_index(
            [[classes.index(str(c)) for c in row] for row in data["token_class"].values[steps]],
            "uint8",
        ),
        "masked": pack_index(data["masked"].values[steps].astype(int), "uint8"),
    }


def _spelled(trace: Trace) -> dict[int, str]:
    """Return the text of every token that the kept steps and the result show; a mask is blank."""
    data, ids = trace.data, trace.canvas.values
    seen = ids[data["step"].values].ravel()
    spelled = dict(zip(seen.tolist(), map(str, data["token"].values.ravel()), strict=True))
    final = zip(ids[-1].tolist(), map(str, data["final_token"].values), strict=True)
    return spelled | {int(trace.info["mask_id"]): ""} | dict(final)

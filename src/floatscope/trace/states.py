"""Choose the steps of a decoding, called states, at which attention is compared."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .trace import Trace

N_STATES = 5
REVEALED = (0.0, 0.25, 0.5, 0.75)  # revealed shares of the content; the fifth state is the late one
ROWS = 8  # minimum number of masked rows in a state


def choose_states(trace: "Trace", rows: int = ROWS) -> list[int]:
    """Return the kept steps at which 0, ¼, ½ and ¾ of the content are first revealed, and a late step.

    The late step is the last step with at least `rows` masked rows. Steps with fewer masked rows are left
    out, so a short answer has fewer states. If no step remains, the first step is returned.
    """
    masked = trace.data["masked"].values.sum(1)  # (step,)
    late = np.flatnonzero(masked >= rows)[-1:].tolist()
    enough = {step for step in (*_quarters(trace), *late) if masked[step] >= rows}
    return sorted(enough) or [0]


def _quarters(trace: "Trace") -> list[int]:
    """Return the kept steps at which each share in REVEALED of the answer's content is first reached."""
    start, final = int(trace.info["prompt_length"]), trace.canvas.values[-1]
    masked = trace.data["masked"].values  # (step, key)
    class_of: dict[int, str] = {}
    classes = trace.data["token_class"].values
    for step, tick in enumerate(trace.data["step"].values):
        class_of |= dict(zip(trace.canvas.values[int(tick)].tolist(), classes[step], strict=True))
    special = [i for i, kind in class_of.items() if kind == "special"]
    is_content = (final >= 0) & ~np.isin(final, [int(trace.info["mask_id"]), *special])
    is_content[:start] = False
    if not is_content.any() or not masked.any():
        return []
    revealed = 1 - masked[:, is_content].mean(1)
    looking = masked.any(1)
    steps = [np.flatnonzero((revealed >= share - 1e-9) & looking) for share in REVEALED]
    return [int(s[0]) for s in steps if len(s)]

"""The tables of docs/findings.md, from what `examples/findings.py run` wrote. Nothing is asked here."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from floatscope import DecodingOrder
from floatscope.intervals import bootstrap, difference

Found = dict[str, Any]
MODELS = {"pair/mdm": "diffusion", "pair/arm": "autoregressive"}


def tables(found: Found) -> str:
    base = "knowledge/unseen/with"
    parts = [
        "### Closed book and with passages\n",
        _knowledge(found),
        "\n### Gold position, number, noise, conflicts, order, masks\n",
        _rows(found, base, _named("gold", "passages", "noise", "conflicts", "question", "extra")),
        "\n### Anchors masked\n",
        "`head`: the k keys with most attention of each head; `sink`: of those, keys that pass "
        "`Excess(3)`; `mean`: of the head mean.\n",
        _controls(found, "sinks", base),
        "\n### Tokens masked in the first and the last third of the layers\n",
        _controls(found, ("markup", "gold-passage", "structural"), base),
        "\n### Other interventions\n",
        _rows(found, base, _named("sink-token", "boost")),
        "\n### Samplers (diffusion), one hop\n",
        _samplers(found, " sampler/"),
        "\n### Samplers (diffusion), two hops\n",
        _samplers(found, " hops-sampler/"),
    ]
    return "\n".join(parts)


def _named(*starts: str) -> Any:
    return lambda setting: (
        setting.partition("/")[0].startswith(starts) and "passage/" not in setting
    )


def _of(found: Found, model: str, setting: str) -> np.ndarray | None:
    entry = found.get(f"{model} {setting}")
    return np.array(entry["contains"], float) if entry and "contains" in entry else None


def _cell(values: np.ndarray | None) -> str:
    if values is None:
        return "–"
    mean, low, high = (100 * float(x) for x in bootstrap(values))
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def _apart(values: np.ndarray | None, base: np.ndarray | None) -> str:
    if values is None or base is None or len(values) != len(base):
        return "–"
    mean, low, high = (100 * float(x) for x in difference(values, base))
    return f"{mean:+.1f} [{low:.1f}, {high:.1f}]"


def _knowledge(found: Found) -> str:
    lines = [
        "| people | model | closed book | with nine passages | gain (paired) |",
        "|---|---|---|---|---|",
    ]
    gains: dict[tuple[str, str], np.ndarray] = {}
    for people in ("unseen", "known"):
        for model, kind in MODELS.items():
            closed, read = (
                _of(found, model, f"knowledge/{people}/{how}") for how in ("closed", "with")
            )
            lines.append(
                f"| {people} | {kind} | {_cell(closed)} | {_cell(read)} | {_apart(read, closed)} |"
            )
            if closed is not None and read is not None:
                gains[people, kind] = read - closed
    for people in ("unseen", "known"):
        both = [gains.get((people, kind)) for kind in MODELS.values()]
        lines.append(f"| {people} | gain, diffusion − autoregressive | | | {_apart(*both)} |")
    return "\n".join(lines) + "\n"


def _rows(found: Found, base: str, wanted: Any) -> str:
    names = dict.fromkeys(key.split(" ", 1)[1] for key in found)
    lines = [
        "| setting | diffusion | difference | autoregressive | difference |",
        "|---|---|---|---|---|",
    ]
    for setting in filter(wanted, names):
        cells = []
        for model in MODELS:
            values = _of(found, model, setting)
            cells += [_cell(values), _apart(values, _of(found, model, base))]
        lines.append(f"| {setting} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _controls(found: Found, starts: str | tuple[str, ...], base: str) -> str:
    lines = [
        "| masked | model | chosen | random control | matched control | chosen − random |",
        "|---|---|---|---|---|---|",
    ]
    names = dict.fromkeys(
        key.split(" ", 1)[1].rpartition("/")[0]
        for key in found
        if key.split(" ", 1)[1].startswith(starts)
    )
    for name in names:
        for model, kind in MODELS.items():
            chosen = _of(found, model, f"{name}/anchors")
            chosen = _of(found, model, f"{name}/chosen") if chosen is None else chosen
            random, matched = (_of(found, model, f"{name}/{c}") for c in ("random", "matched"))
            lines.append(
                f"| {name} | {kind} | {_cell(chosen)} | {_cell(random)} | {_cell(matched)} | "
                f"{_apart(chosen, random)} |"
            )
    nothing = " · ".join(f"{kind} {_cell(_of(found, m, base))}" for m, kind in MODELS.items())
    return "\n".join(lines) + f"\n\nNothing masked: {nothing}.\n"


def _samplers(found: Found, start: str) -> str:
    lines = [
        "| sampler | right | steps | left to right | ends first (−) | trivial first (null) |",
        "|---|---|---|---|---|---|",
    ]
    measure = DecodingOrder(frequencies="pair")
    for key, entry in found.items():
        if start not in key or "order" not in entry:
            continue
        decodings = [
            SimpleNamespace(
                prompt=SimpleNamespace(ids=()),
                change=np.array(one["change"], dtype=np.int8),
                block=np.array(one["block"])[:, None],
                canvas=np.array([one["final"]]),
            )
            for one in entry["order"]
        ]
        order = measure.of_decodings(decodings, "pair/mdm").data
        numbers = [
            f"{float(order[n]):+.2f} [{float(order[n + '_low']):.2f}, {float(order[n + '_high']):.2f}]"
            for n in ("left_to_right", "boundary", "trivial")
        ]
        numbers[2] += f" ({float(order['trivial_null']):.2f})"
        right = _cell(np.array(entry["contains"], float))
        steps = np.mean(entry["steps"])
        name = key.partition("sampler/")[2]
        lines.append(f"| {name} | {right} | {steps:.1f} | {' | '.join(numbers)} |")
    return "\n".join(lines) + "\n"

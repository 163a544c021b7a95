"""Floatscope beside other libraries: the tables of `bench/peers.json` and `bench/peers_reuse.json`."""

from typing import Any

from .markdown import between, raw, table

Rows = list[dict[str, Any]]


def of_family(family: str, rows: Rows | None = None) -> str:
    """A line for each way, a column for each length."""
    every = raw("peers")["rows"] if rows is None else rows
    rows = [row for row in every if row["family"] == family]
    sizes = sorted({row["S"] for row in rows})
    lines = []
    for library, way in dict.fromkeys((row["library"], row["way"]) for row in rows):
        same = [row for row in rows if (row["library"], row["way"]) == (library, way)]
        plain = _plain(rows, same[0]["process"])
        cells = [library, way]
        for row in same:
            more = (row["peak_bytes"] - plain[row["S"]]["peak_bytes"]) / 1e6
            floor = f"{row['cpu_ms_per_step']:.0f} ms, {row['peak_bytes'] / 1e6:.0f} MB"
            cost = f"{_ratio(row)}, {_signed(more)} MB"
            cells.append(floor if way == "plain" else cost)
        last = same[-1]
        cells.append(f"{last['kept_bytes_per_step'] / 1e6:.2f} MB")
        cells.append("yes" if last["square_bytes"] else "no")
        cells.append(_number(max(row["logits_difference"] for row in same)))
        errors = [row["sums_difference"] for row in same if row["sums_difference"] is not None]
        cells.append(_number(max(errors)) if errors else "–")
        lines.append(cells)
    head = ["library", "way", *(f"S = {size}" for size in sizes)]
    return table([*head, f"kept a step, S = {sizes[-1]}", "S×S", "logits", "sums"], lines, left=2)


def reused() -> str:
    """Times at the length of the second run, freed memory given back and kept."""
    first, second = raw("peers")["rows"], raw("peers_reuse")["rows"]
    (size,) = {row["S"] for row in second}
    families = list(dict.fromkeys(row["family"] for row in second))
    found = {
        (family, row["library"], row["way"], n): row
        for n, rows in enumerate((first, second))
        for family in families
        for row in rows
        if row["family"] == family and row["S"] == size and row["way"] != "plain"
    }
    ways = [key[1:3] for key in found if key[3]]
    order = list(dict.fromkeys((row["library"], row["way"]) for row in first))
    lines = []
    for library, way in sorted(set(ways), key=order.index):
        cells = [library, way]
        for family in families:
            for n in (0, 1):
                row = found.get((family, library, way, n))
                cells.append("–" if row is None else _ratio(row))
        lines.append(cells)
    head = [f"{family}, {what}" for family in families for what in ("default", "reused")]
    return table(["library", "way", *head], lines, left=2)


def abilities() -> str:
    """What was tried in the run, from its facts; the rest was looked up, and says so."""
    facts = raw("peers")["facts"]

    def of(where: str, what: str) -> str:
        return str(facts[where][what])

    def loads(text: str) -> str:
        if text == "works":
            return "yes"
        assert "does not recognize" in text or "has model type" in text, text
        return "no: unknown model type"

    ours, lens_l, lens_d, sight = (
        "Floatscope, transformers, LLaDA",
        "TransformerLens, LLaDA",
        "TransformerLens, Dream",
        "nnsight, Dream",
    )
    load = "loads the checkpoint without its code"
    pad = "padded batch: error of the sums"
    assert "NotImplementedError" in of(lens_l, "decodes: diffusion_generate")
    assert of(ours, "Floatscope: padded batch: same tokens") == "True"
    layers = of(ours, "transformers: attentions under SDPA")
    rows = [
        [
            load.replace("its code", "the code it comes with"),
            loads(of(ours, f"Floatscope: {load}")),
            loads(of(ours, f"transformers: {load}")),
            loads(of(lens_l, load)),
            loads(of(sight, load)),
        ],
        [
            "decodes a masked diffusion model", "yes", "no sampler found¹",
            "LLaDA: no (`NotImplementedError`); Dream: only by Dream's own code",
            "no sampler found¹",
        ],
        [
            "attention without eager", "yes", f"no: SDPA gives {layers}",
            f"LLaDA: always its own eager; Dream: SDPA gives {of(lens_d, 'patterns under SDPA')}",
            f"not the matrix ({of(sight, 'attention under SDPA')}); q and k, yes",
        ],
        ["output unchanged bit for bit", *_unchanged()],
        ["works without S×S at S = 1024", *_without_square()],
        [
            "error of the sums of a batch padded on the left: over real rows; over all",
            f"{_short(of(ours, f'Floatscope: {pad}'))}, same tokens",
            *(
                f"{_short(of(where, f'{own}{pad} over real rows'))} by hand; "
                f"{_short(of(where, f'{own}{pad} over all rows'))}"
                for where, own in ((ours, "transformers: "), (lens_l, ""), (sight, ""))
            ),
        ],
        ["gives the attention matrix itself¹", "`model.pattern`", "yes", "yes", "yes"],
        [
            "other activations, edits anywhere, gradients¹", "its own statistics and interventions",
            "hooks of torch", "yes (read, not run)", "yes (read, not run)",
        ],
    ]  # fmt: skip
    return table(["", "Floatscope", "transformers", "TransformerLens", "nnsight"], rows, left=5)


def _by_library(quantity: str) -> dict[str, dict[str, float]]:
    """The largest of a quantity, of every way that looks at attention, at the greatest length."""
    rows = raw("peers")["rows"]
    size = max(row["S"] for row in rows)
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["S"] == size and row["sums_difference"] is not None:
            ways = found.setdefault(row["library"], {})
            ways[row["way"]] = max(ways.get(row["way"], 0), row[quantity])
    return found


def _said(of: dict[str, float], yes: str, no: str) -> str:
    good = [way for way, value in of.items() if not value]
    return yes if len(good) == len(of) else no if not good else f"{yes}: {', '.join(good)}"


def _unchanged() -> list[str]:
    found = _by_library("logits_difference")
    names = ("Floatscope", "transformers", "TransformerLens", "nnsight")
    return [_said(found[name], "yes", "no") for name in names]


def _without_square() -> list[str]:
    found = _by_library("square_bytes")
    names = ("Floatscope", "transformers", "TransformerLens", "nnsight")
    return [_said(found[name], "yes", "no") for name in names]


def _plain(rows: Rows, process: str) -> dict[int, dict[str, Any]]:
    return {r["S"]: r for r in rows if (r["process"], r["way"]) == (process, "plain")}


def _ratio(row: dict[str, Any]) -> str:
    return between(row["cpu_ratio"], row["cpu_ratio_range"], digits=2)


def _signed(more: float) -> str:
    return f"{more:+.0f}".replace("-0", "+0").replace("-", "−")


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.0e}".replace("e-0", "e-")


def _short(text: str) -> str:
    value = float(text)
    return "0" if value == 0 else f"{value:.0f}" if value >= 1 else _number(value)

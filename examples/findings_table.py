"""The tables of docs/explanation/findings.md, from the published answers or from runs. Nothing is asked here.

python examples/findings_table.py docs/findings.json.gz
python examples/findings_table.py DIR        # what runs/findings.sh left: DIR/one and DIR/hops
"""

import gzip
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import floatscope as fs
from floatscope.stats.intervals import difference, mean
from floatscope.studies import Findings

Found = dict[str, dict[str, Any]]  # model and setting → contains, steps, order
ENDS = (1,)  # the pair's <eos>: the published decodings do not name it
MODELS = {"pair/mdm": "diffusion", "pair/arm": "autoregressive"}
# What a study calls a setting → what the tables do.
NAMES = {
    r"closed-book": "knowledge/unseen/closed",
    r"with-passages": "knowledge/unseen/with",
    r"known-closed-book": "knowledge/known/closed",
    r"known-with-passages": "knowledge/known/with",
    r"gold-(\d+)": r"gold/\1",
    r"structure-(\w+)-(\w+)": r"markup/\1/\2",
    r"sampler-(.+)": r"sampler/\1",
}


def published(path: Path) -> Found:
    found: Found = json.loads(gzip.decompress(path.read_bytes()))
    for entry in found.values():
        entry["order"] = _order(entry["order"]) if entry.get("order") else None
    return found


def _order(decodings: list[dict[str, Any]]) -> Any:
    every = [
        SimpleNamespace(
            prompt=SimpleNamespace(ids=()),
            change=np.array(one["change"], dtype=np.int8),
            block=np.array(one["block"])[:, None],
            canvas=np.array([one["final"]]),
        )
        for one in decodings
    ]
    return fs.measures.DecodingOrder(frequencies="pair").of_decodings(every, "pair/mdm", ENDS)


def of_runs(directory: Path) -> Found:
    fs.load_plugin(str(Path(__file__).with_name("findings.py")))  # the studies that the runs name
    found: Found = {}
    for part, prefix in {"one": "", "hops": "hops-"}.items():
        run = Findings(directory / part)
        for setting in dict.fromkeys(run.tables["answers"]["setting"]):
            name = setting
            for pattern, to in NAMES.items():
                name = re.sub(f"^{pattern}$", to, name)
            for model in run.models:
                rows = run.answers(setting, model)
                if rows is not None:
                    order = run.order(setting, model)
                    entry = {"contains": rows["contains"], "steps": rows["steps"], "order": order}
                    found[f"{model} {prefix}{name}"] = entry
    places = {key: _place(key) for key in found}
    return dict(sorted(found.items(), key=lambda item: places[item[0]]))


def _place(key: str) -> tuple[bool, bool, int]:
    """The order of the published tables, where the studies' own differs: gold positions."""
    place = re.search(r" gold/(\d+)$", key)
    return (
        "arm" in key,
        place is None and " knowledge/" not in key,
        int(place[1]) if place else -1,
    )


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
    value, low, high = (100 * float(x) for x in mean(values, bounds=(0, 1)))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def _apart(values: np.ndarray | None, base: np.ndarray | None) -> str:
    if values is None or base is None or len(values) != len(base):
        return "–"
    value, low, high = (100 * float(x) for x in difference(values, base))
    return f"{value:+.1f} [{low:.1f}, {high:.1f}]"


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
        "| sampler | right | steps | left to right | ends first (−) | end tokens first (null) | "
        "end or trivial first (null) |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, entry in found.items():
        if start not in key or entry["order"] is None:
            continue
        order = entry["order"].data
        # Where early stop left positions masked in one answer, the others are a choice among them.
        whole = float(order["unrevealed"]) == 0
        numbers = [_value(order, n) if whole else "–" for n in ("left_to_right", "boundary")]
        for name in ("ends_first", "end_or_trivial"):
            numbers.append(f"{_value(order, name)} ({float(order[name + '_null']):.2f})")
        right = _cell(np.array(entry["contains"], float))
        steps = np.mean(entry["steps"])
        name = key.partition("sampler/")[2]
        lines.append(f"| {name} | {right} | {steps:.1f} | {' | '.join(numbers)} |")
    return "\n".join(lines) + "\n"


def _value(order: Any, name: str) -> str:
    value, low, high = (float(order[f"{name}{end}"]) for end in ("", "_low", "_high"))
    return f"{value:+.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    given = Path(sys.argv[1])
    print(tables(of_runs(given) if given.is_dir() else published(given)))

"""Does the strongest key stay? A study of one's own, and the table of docs/explanation/twin.md from its runs.

floatscope study floating changes --plugin examples/twin_table.py --model twin/mdm --model twin/arm …
python examples/twin_table.py RUN        # Markdown, one table for each text kind of the run
"""

import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr

import floatscope as fs
from floatscope.stats.intervals import mean
from floatscope.studies import Findings


@fs.register
@dataclass(frozen=True)
class Changes(fs.Measure):
    """Position 0 and the strongest key of the head mean: their shares, and how often the latter changes.

    `changes` counts the steps after which the strongest key is another one, `keys` how many keys are
    the strongest at some step; `…_masked` are the same for the attention of masked rows alone.
    """

    needs: ClassVar[tuple[str, ...]] = ("head_mean", "groups")
    units: ClassVar[dict[str, str]] = {
        "first": "share",
        "top": "share",
        "changes": "of the steps",
        "keys": "keys",
        "top_masked": "share",
        "changes_masked": "of the steps",
    }

    def compute(self, trace: fs.Trace) -> xr.Dataset:
        mass = trace.mean_mass.transpose("step", "layer", "key")
        values = {
            "first": mass.isel(key=0).mean("step"),
            "first_null": trace.null.isel(key=0).mean("step") + 0 * mass.isel(key=0).mean("step"),
            "top": mass.max("key").mean("step"),
        }
        layers = {"layer": trace.data["layer"].values}
        strongest = mass.fillna(-1).values.argmax(-1)  # (step, layer)
        changes, keys = _moves(strongest)
        values["changes"] = xr.DataArray(changes, dims="layer", coords=layers)
        values["keys"] = xr.DataArray(keys, dims="layer", coords=layers)
        nothing = np.full(len(keys), np.nan)
        values["top_masked"] = values["changes_masked"] = xr.DataArray(
            nothing, dims="layer", coords=layers
        )
        if bool(trace.data["masked"].any()):
            there = trace.data["masked"].any("key").values
            masked = trace.mean_mass_from("masked").transpose("step", "layer", "key")
            masked = masked.values[there]
            values["top_masked"] = xr.DataArray(
                np.nanmean(np.nanmax(masked, -1), 0), dims="layer", coords=layers
            )
            values["changes_masked"] = xr.DataArray(
                _moves(np.nan_to_num(masked, nan=-1).argmax(-1))[0], dims="layer", coords=layers
            )
        return xr.Dataset(
            {k: v.drop_vars([c for c in v.coords if c != "layer"]) for k, v in values.items()}
        )


def _moves(strongest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(step, layer) → share of the steps after which the key is another, and number of keys; by layer."""
    changes = (np.diff(strongest, axis=0) != 0).mean(0) if len(strongest) > 1 else np.nan
    keys = np.array([len(set(column)) for column in strongest.T.tolist()], float)
    return changes + 0 * keys, keys


@fs.register
class StrongestOverSteps(fs.Study):
    name = "changes"
    question = "Does the strongest key stay while the answer is written?"
    method = (
        "strongest key of the head mean, step by step; untrained controls read the same canvases"
    )

    def measures(self, request):
        return {"changes": Changes()}

    def controlled(self, request):
        return ("changes",)


VALUES = {
    "first": "position 0's share, %",
    "top": "strongest key's share, %",
    "changes": "changes of the strongest key",
    "changes_masked": "the same, of masked rows",
}


def table(run, kind: str) -> str:
    """Means over prompts by third of the layers, 95 % intervals; after the semicolon: permuted weights."""
    lines = [
        f"| {kind} | layers | {' | '.join(VALUES.values())} |",
        "|---" * (2 + len(VALUES)) + "|",
    ]
    for model in run.models:
        trained, control = run.result("changes", model), run.control("changes", model)
        depth = trained.examples.sizes["layer"]
        for name, part in (("first third", 0), ("middle", 1), ("last third", 2)):
            layers = slice(part * depth // 3, (part + 1) * depth // 3)
            cells = []
            for value in VALUES:
                # A share in percent, or how often in all the steps.
                scale = (run.request.steps or run.request.length) - 1 if "changes" in value else 100
                both = [_said(r.examples[value], layers, scale) for r in (trained, control)]
                cells.append(f"{both[0]}; {both[1]}" if both[0] else "–")
            lines.append(f"| `{model}` | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _said(values: xr.DataArray, layers: slice, scale: float) -> str:
    each = values.isel(layer=layers).mean("layer").values
    if np.isnan(each).all():
        return ""
    middle, low, high = (scale * float(x) for x in mean(each, bounds=(0, 1)))
    return f"{middle:.1f} [{low:.1f}, {high:.1f}]"


if __name__ == "__main__":
    run = Findings(sys.argv[1])
    for part in (run, *run.extra_runs):
        print(table(part, part.request.data), end="\n\n")

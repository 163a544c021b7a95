"""Every measure on both models of the embedded pair: tables and figures into a folder.

    python examples/measures.py OUT [--prompts 32]

One set of questions for both, one estimator; afterwards the two side by side.
"""

import argparse
import warnings
from pathlib import Path

from rich.console import Console
from rich.progress import track

import floatscope as fs
from floatscope.measures import MEASURES
from floatscope.tasks import prompt_of
from floatscope.tasks.world import LEVELS, World


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--level", default="nine", choices=list(LEVELS))
    parser.add_argument("--figures", default="svg", choices=["svg", "pdf", "png"])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    prompts = [prompt_of(e) for e in World().examples(LEVELS[args.level], args.prompts, seed=11)]
    found: dict[str, list[fs.Result]] = {name: [] for name in MEASURES}
    for model_name in ("pair/mdm", "pair/arm"):
        model = fs.load(model_name)
        sampler = fs.Confidence(length=10) if model.is_diffusion else fs.Autoregressive(length=10)
        traces = model.trace(prompts, sampler, keep=fs.statistics.STATISTICS)
        for name, measure in track(MEASURES.items(), f"measuring {model_name}", console=console):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                result = measure()(traces)
            found[name].append(result)
            stem = f"{name}-{model_name.removeprefix('pair/')}"
            result.table().to_csv(args.out / f"{stem}.csv", index=False)
            result.save_figure(args.out / f"{stem}.{args.figures}")
            console.print(repr(result), markup=False, highlight=False)
    both = fs.compare(*found["absorption"])
    console.print(repr(both), markup=False, highlight=False)
    console.print(f"tables and figures are in {args.out}")


if __name__ == "__main__":
    main()

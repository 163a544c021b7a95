"""How long one waits for the live page: from asking for a run to its first step, and from step to step.

    python bench/live.py [--model pair/mdm --model pair/arm] [--rounds 5] [--json FILE]

`floatscope live` as a process of its own, with its workers, and a client that reads the stream as a page
does: a question with nine passages, 16 tokens; then a branch of it at half its way; then both at once.
Times are on the wall, from the request to the line's arrival, medians over rounds (the longest gap: of all
rounds). The model is loaded and has run once before. What a browser adds to that is not in it.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlparse

from rich.console import Console
from rich.table import Table

LENGTH = 16


class Page:
    """The server's address, and what is asked of it."""

    def __init__(self, url: str) -> None:
        parsed = urlparse(url)
        self.host, self.path = parsed.netloc, parsed.path

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection(self.host, timeout=600)
        text = None if body is None else json.dumps(body)
        connection.request(method, self.path + path, text, {"content-type": "application/json"})
        return connection.getresponse()

    def get(self, path: str) -> Any:
        return json.loads(self._ask("GET", path).read())

    def run(self, body: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
        """Every event, and when it was there, in milliseconds after the request."""
        begun = time.perf_counter()
        answer = self._ask("POST", "run", body)
        return [(1000 * (time.perf_counter() - begun), json.loads(line)) for line in answer]


LATE = 150.0  # milliseconds between two steps: longer, and one waits


@contextmanager
def served(models: list[str]) -> Iterator[Page]:
    flags = [flag for model in models for flag in ("--model", model)]
    code = "from floatscope.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "live", *flags], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        page = Page(process.stdout.readline().split()[0])
        while any(model["state"] == "loading" for model in page.get("models")["models"]):
            time.sleep(0.2)
        yield page
    finally:
        process.terminate()
        process.wait()


def figures(
    model: str, what: str, runs: list[list[tuple[float, dict[str, Any]]]]
) -> dict[str, Any]:
    steps = [[at for at, event in run if event["event"] == "step"] for run in runs]
    gaps = [b - a for one in steps for a, b in pairwise(one)]
    started = next(event for _, event in runs[0] if event["event"] == "started")
    return {
        "model": model,
        "what": what,
        "positions": started["size"],
        "steps": len(steps[0]),
        "started": median(run[0][0] for run in runs),
        "first": median(one[0] for one in steps),
        "slowest_first": max(one[0] for one in steps),
        "gap": median(gaps) if gaps else 0.0,
        "longest": max(gaps, default=0.0),
        "gaps": len(gaps),
        "late": sum(gap > LATE for gap in gaps),
        "done": median(run[-1][0] for run in runs),
    }


def asked(page: Page, model: dict[str, Any]) -> dict[str, Any]:
    prompt = page.get("setup")["examples"][0]["prompt"]
    settings: dict[str, Any] = {"length": LENGTH, "stop_at_eos": False}
    return {
        "model": model["id"],
        "prompt": prompt,
        "sampler": {"name": model["sampler"]["name"], "settings": settings},
    }


def measured(models: list[str], rounds: int) -> list[dict[str, Any]]:
    rows = []
    with served(models) as page:
        loaded = page.get("models")["models"]
        for model in loaded:
            ask = asked(page, model)
            first = page.run(ask)[-1][1]
            runs = [page.run(ask) for _ in range(rounds)]
            rows.append(figures(model["name"], "a run", runs))
            touch = {"kind": "ablate", "heads": [[1, 2]]}
            branch = {"from": {"run": first["run"], "step": LENGTH // 2}, "touches": [touch]}
            runs = [page.run(branch) for _ in range(rounds)]
            rows.append(figures(model["name"], f"a branch at step {LENGTH // 2}", runs))
        if len(loaded) > 1:
            asks = [asked(page, model) for model in loaded]
            together: list[list[Any]] = [[] for _ in asks]
            with ThreadPoolExecutor(len(asks)) as clients:
                for _ in range(rounds):
                    for own, run in zip(together, clients.map(page.run, asks), strict=True):
                        own.append(run)
            for model, runs in zip(loaded, together, strict=True):
                rows.append(figures(model["name"], "both at once", runs))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = measured(options.model or ["pair/mdm", "pair/arm"], options.rounds)
    shown = Table("run", "positions × steps", "begun", "first step", "between", "longest", "end")
    for row in rows:
        times = [f"{row[name]:.0f} ms" for name in ("started", "first", "gap", "longest", "done")]
        name = f"{row['model']}, {row['what']}"
        shown.add_row(name, f"{row['positions']} × {row['steps']}", *times)
    Console().print(shown)
    if options.json:
        load = list(os.getloadavg())
        found = {"cores": os.cpu_count(), "load": load, "rounds": options.rounds, "rows": rows}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What a long decoding costs: peak memory and time of tracing, saving and looking at it.

    python bench/long_decoding.py [--model twin/mdm] [--tokens 128] [--steps 128] [--json FILE]

Two processes, as a user has them. In the first, a notebook: the model is loaded and one short trace
of the same length is made and let go; then a trace is made, saved, and shown in a cell. In the second,
`floatscope view`: the index, the scene, all heads of every eighth step, one head at all steps.

Peak memory is the most anonymous memory that the process held (RssAnon, looked at every 5 ms; Linux
alone; files that are mapped, such as weights and libraries, do not count) beyond what it held before:
after the short trace, or after the imports. It is given as a ratio to the size of the trace, and
includes it. Times are of the processor, all threads together.
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

PROMPT = "The history of the city of London begins in Roman times. "
STAGES = {
    "notebook": ("trace", "save", "show in a cell"),
    "served": ("index", "scene", "heads of 16 steps", "one head, all steps"),
}


def held() -> int:
    """Memory held now, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


class Stages:
    """What each stage took: its peak beyond the level of the beginning, and its time."""

    def __init__(self) -> None:
        gc.collect()
        self.level = held()
        self.rows: dict[str, dict[str, float]] = {}
        self._most = 0
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            self._most = max(self._most, held())
            time.sleep(0.005)

    def run(self, name: str, act: Callable[[], Any]) -> Any:
        self._most, start = held(), time.process_time()
        made = act()
        seconds = time.process_time() - start
        peak = max(self._most, held()) - self.level
        self.rows[name] = {"peak": peak, "cpu_s": round(seconds, 2)}
        return made


def notebook(args: argparse.Namespace) -> dict[str, Any]:
    import floatscope as fs

    model = fs.load(args.model)
    some: dict[str, Any] = {"length": args.tokens}
    sampler = fs.Confidence if model.is_diffusion else fs.Autoregressive
    if model.is_diffusion:
        model.trace(PROMPT, fs.Confidence(steps=2, **some))
        some["steps"] = args.steps
    else:
        model.trace(PROMPT, fs.Autoregressive(length=2))
    stages = Stages()
    trace = stages.run("trace", lambda: model.trace(PROMPT, sampler(**some)))
    stages.run("save", lambda: trace.save(Path(args.folder) / "trace.zarr"))
    stages.run("show in a cell", trace._repr_html_)
    return {"trace_bytes": trace.nbytes, "stages": stages.rows}


def served(args: argparse.Namespace) -> dict[str, Any]:
    from floatscope.report.serve import make_server

    make_server(args.folder).server_close()
    stages = Stages()
    server = make_server(args.folder)
    source: Any = server.page.source
    stages.run("index", source.index)
    scene = stages.run("scene", lambda: source.scene("t0"))
    some = range(0, len(scene["steps"]), max(1, len(scene["steps"]) // 16))
    stages.run("heads of 16 steps", lambda: [source.heads("t0", i)["kept"] for i in some])
    if hasattr(source, "head"):  # versions before had none
        stages.run("one head, all steps", lambda: source.head("t0", 0, 0))
    server.server_close()
    return {"left_out": scene["left_out"], "stages": stages.rows}


def child(args: argparse.Namespace, name: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", name, "--folder", args.folder]
    for option in ("model", "tokens", "steps"):
        command += [f"--{option}", str(getattr(args, option))]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="twin/mdm")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--child", choices=list(STAGES), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps({"notebook": notebook, "served": served}[args.child](args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        args.folder = args.folder or folder
        found = {name: child(args, name) for name in STAGES}
    size = found["notebook"]["trace_bytes"]
    table = Table(
        title=f"{args.model}, {args.tokens} tokens × {args.steps} steps, {size / 1e6:.0f} MB"
    )
    for name in ("process", "stage", "peak", "× trace", "CPU"):
        table.add_column(name, justify="left" if name in ("process", "stage") else "right")
    for process, stages in STAGES.items():
        for i, stage in enumerate(stages):
            if (row := found[process]["stages"].get(stage)) is not None:
                peak, seconds = row["peak"], row["cpu_s"]
                first = process if i == 0 else ""
                cells = (f"{peak / 1e6:.0f} MB", f"{peak / size:.2f}", f"{seconds:.1f} s")
                table.add_row(first, stage, *cells, end_section=stage == stages[-1])
    Console().print(table)
    if args.json:
        asked = {name: getattr(args, name) for name in ("model", "tokens", "steps")}
        args.json.write_text(json.dumps({"asked": asked, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

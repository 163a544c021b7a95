"""Python files in a directory that somebody sent: none of them runs, whatever is started there.

A directory holds a checkpoint and modules that write their names into a file when they are imported.
The commands that start other processes (chat templates, workers, Ray, the live page) run inside it, and
a run.json that was "made" there is repeated from elsewhere.

    python -m tests.attacks.working_directory
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Collection
from pathlib import Path

import floatscope

LIMIT = 900  # seconds, for what hangs
# Modules of the package, of the standard library and of libraries, which children import.
NAMES = (
    "floatscope/__init__", "selectors", "json/__init__", "typing", "random", "sitecustomize",
    "usercustomize", "numpy/__init__", "transformers/__init__", "multiprocessing/__init__", "ray",
)  # fmt: skip
CANARY = "import os\nopen(os.environ['CANARY'], 'a').write(__name__ + '\\n')\n"
STUDY = (
    "study floating --model . --data {data} --limit 2 --length 4 --steps 2 --controls 0 --out {out}"
)


def write_directory(folder: Path) -> Path:
    """Write a tiny checkpoint, and beside it a module for every name."""
    from floatscope.models import tiny

    tiny.write("LLaDA", folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{% for m in messages %}{{ m.content }} {% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    rows = [{"question": f"Number {i}?", "answers": [f"w{i}"], "passages": ["No."]} for i in "12"]
    (folder / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    make_run(folder)
    for name in NAMES:
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(CANARY)
    return folder


def make_run(folder: Path) -> None:
    """Run a study in the folder, before it turns hostile."""
    from floatscope.studies import request_of
    from floatscope.studies.run import run

    fields = {"studies": ["floating"], "models": ["."], "data": "q.jsonl", "limit": 2, "length": 4}
    with contextlib.chdir(folder):
        run(request_of({**fields, "steps": 2, "controls": 0}), "made")


def environment(canary: Path) -> dict[str, str]:
    package = str(Path(floatscope.__file__).parents[1])
    return {**os.environ, "CANARY": str(canary), "PYTHONPATH": package, "OMP_NUM_THREADS": "1"}


def program(*words: str) -> list[str]:
    """The `floatscope` command as it is installed: a script, whose own directory is on the search path."""
    return [sys.executable, str(Path(sys.executable).with_name("floatscope")), *words]


def run(words: str, folder: Path, canary: Path) -> str:
    done = subprocess.run(
        program(*words.split()),
        cwd=folder,
        env=environment(canary),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    return "" if done.returncode == 0 else done.stderr[-500:] + done.stdout[-500:]


def run_live(folder: Path, canary: Path) -> str:
    """Start the live page, and wait until its process has loaded the model."""
    with subprocess.Popen(
        program("live", "--model", "."),
        cwd=folder,
        env={**environment(canary), "COLUMNS": "500"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if address := re.search(r"http://\S+", line):
                break
        else:
            return "".join(said)
        state = "loading"
        while state not in ("ready", "failed"):
            models = json.load(urllib.request.urlopen(f"{address[0]}models", timeout=LIMIT))
            state = models["models"][0]["state"]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT)
    return "" if state == "ready" else state


def repeated(folder: Path, canary: Path, elsewhere: Path) -> str:
    """Repeat a run that names the directory as the place where it was made."""
    shutil.copytree(folder / "made", elsewhere / "gift")
    again = f"study --config gift/run.json --out {elsewhere / 'again'} --workers 2"
    return run(again, elsewhere, canary)


def attack(
    scratch: Path, *, chosen: Collection[str] | None = None
) -> dict[str, tuple[str, list[str]]]:
    """Run the chosen commands, or all; by command, what went wrong and which modules were imported."""
    folder, elsewhere = write_directory(scratch / "gift"), scratch / "elsewhere"
    elsewhere.mkdir()
    local = STUDY.format(data="q.jsonl", out="run") + " --workers 2"
    on_ray = STUDY.format(data="q.jsonl", out="run-ray") + " --engine ray --workers 1"
    commands = {
        "trace": lambda canary: run("trace --model . --prompt hi --length 4", folder, canary),
        "study --workers 2": lambda canary: run(local, folder, canary),
        "study --config gift/run.json": lambda canary: repeated(folder, canary, elsewhere),
        "live": lambda canary: run_live(folder, canary),
        "study --engine ray": lambda canary: run(on_ray, folder, canary),
    }
    outcomes = {}
    for number, (name, command) in enumerate(commands.items()):
        if chosen is not None and name not in chosen:
            continue
        canary = scratch / f"canary-{number}"
        canary.touch()
        wrong = command(canary)
        outcomes[name] = wrong, sorted(set(canary.read_text().split()))
    return outcomes


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        outcomes = attack(Path(scratch))
    for name, (wrong, imported) in outcomes.items():
        print(
            f"{name:30} {'failed: ' + wrong if wrong else 'works':10} imported: {imported or '–'}"
        )
    sys.exit(any(wrong or imported for wrong, imported in outcomes.values()))


if __name__ == "__main__":
    main()

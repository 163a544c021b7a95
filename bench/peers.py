"""Floatscope beside other ways to read attention: time, memory, bytes kept, exactness, in one run.

    python bench/peers.py [--json bench/peers.json]

Small models with random weights, on the CPU, in float32: a LLaDA and a Dream, each decoded for a few
steps, while the attention that every key receives is summed for every layer, head and step. Ways:
Floatscope, transformers' `output_attentions`, TransformerLens, nnsight. The peers come from PyPI, as
`bench/peers.txt` pins them, into an environment of their own (`.venv-peers`). Each library has its
own process and its own plain decoding, to which its times are ratios: ways take turns, the median of
the rounds' ratios counts. Times are of the CPU, which with one thread is what a clock shows on an
idle machine, and does not suffer from a busy one. Peak memory is what a decoding adds, in a forked
process each (Linux).
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from table_parts.peers import of_family

from floatscope.models import tiny

HERE = Path(__file__).resolve().parent
PROCESSES = (
    ("Floatscope, transformers", "ours", ("LLaDA", "Dream")),
    ("TransformerLens", "lens", ("LLaDA", "Dream")),
    ("nnsight", "sight", ("Dream",)),
)
KNOBS = ("rounds", "answer", "steps", "threads")
# By default glibc gives blocks above 32 MiB back when they are freed, and takes them anew, page by
# page: at S = 1024 a layer's attention is such a block, and that can cost more than the arithmetic.
REUSE = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def environment(folder: Path) -> Path:
    """The Python that has the peers; made once, and again when the pinned versions change."""
    pins = HERE / "peers.txt"
    wanted = hashlib.sha256(pins.read_bytes()).hexdigest()
    stamp, python = folder / "peers.sha256", folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        say(f"installing {pins.name} into {folder.name} (some minutes, 2 GB)")
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*pip, "-r", str(pins)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(
                f"{done.stderr.strip()[-2000:]}\nThe peers could not be installed: they come from "
                f"PyPI. Look at the message above, then run this again; or name an environment that "
                f"has what {pins.name} lists with --python PATH."
            )
        stamp.write_text(wanted)
    return python


def measure(python: Path, script: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    command = [str(python), str(HERE / "peer_ways" / f"{script}.py"), str(folder)]
    command += ["--sizes", *map(str, args.sizes)]
    for name in KNOBS:
        command += [f"--{name}", str(getattr(args, name))]
    settings = {
        "OMP_NUM_THREADS": str(args.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",  # nothing is fetched: the models are written here
    }
    if args.reuse:
        settings |= REUSE
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | settings)
    if done.returncode:
        raise SystemExit(
            f"bench/peer_ways/{script}.py failed, see above. If memory ran out, use smaller --sizes "
            f"or fewer --steps; if a module is missing, remove {args.env.name} and run again."
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=8, help="of 64 dimensions each")
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--answer", type=int, default=16, help="masks to fill")
    parser.add_argument("--steps", type=int, default=2, help="of the decoding")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reuse", action="store_true", help="freed memory stays with the process")
    parser.add_argument("--env", type=Path, default=HERE.parent / ".venv-peers")
    parser.add_argument("--python", type=Path, help="a Python that has the peers already")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not Path("/proc/self/clear_refs").exists():
        raise SystemExit("Peak memory is read from /proc: run this on Linux.")
    if args.steps > args.answer or args.answer >= min(args.sizes):
        raise SystemExit("Use --steps of at most --answer, and --answer below the smallest size.")
    peers = args.python or environment(args.env)
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    versions: dict[str, str] = {}
    about: dict[str, Any] = {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "parameters": {k: getattr(args, k) for k in ("layers", "heads", "sizes", "reuse", *KNOBS)},
    }
    with tempfile.TemporaryDirectory() as folder:
        shape = tiny.Shape(
            layers=args.layers,
            width=64 * args.heads,
            heads=args.heads,
            kv_heads=max(1, args.heads // 4),
            ffn=176 * args.heads,
            context=max(args.sizes),
            vocab=4096,
            spread=0.05,
        )
        for family in ("LLaDA", "Dream"):
            path = tiny.write(family, Path(folder) / family, shape)
            for library, script, families in PROCESSES:
                if family not in families:
                    continue
                say(f"{family}: {library}")
                python = Path(sys.executable) if script == "ours" else peers
                found = measure(python, script, path, args)
                for row in found["rows"]:
                    name, _, way = row["way"].rpartition(": ")
                    names = {"family": family, "process": library, "library": name or library}
                    rows.append({**names, **row, "way": way})
                facts[f"{library}, {family}"] = found["facts"]
                versions |= found["versions"]
                if args.json:
                    written = about | {"versions": versions, "rows": rows, "facts": facts}
                    args.json.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")
    about["versions"] = versions
    print(json.dumps(about))
    for family in ("LLaDA", "Dream"):
        print(f"\n{family}\n\n{of_family(family, rows)}")
    print(f"\n{json.dumps(facts, indent=1, ensure_ascii=False)}")


if __name__ == "__main__":
    main()

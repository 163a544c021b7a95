"""A real study of two models, and everything that can happen to it: the results are the same bytes.

    python -m tests.attacks.faults --engine local --kills 20 --stops 10 --full 5 --flips 10

Kills are kill -9, of one worker or of the whole program; a stop is a worker's SIGSTOP; a full disk is a small
file system that something else fills; a flipped byte is one bit in a stored shard. They come at moments drawn
from the seed. After what ended the program, the same command is typed again. A worker's silence is counted
while one is stopped and at no other time, so that none is lost because the machine is busy. When a run is
complete it is compared with an unbroken one, and the next begins, until all faults have come. Needs Linux;
full disks need the right to mount (they are left out, and said to be, without).
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

from tests.waiting import LIMIT, until

STUDY = """study floating knowledge --model pair/mdm --model pair/arm --data world:one --limit 8
--questions 16 --length 6 --steps 3 --view 1 --set shard=1 --set batch_size=2""".split()
ENGINES = ("local", "ray")
KINDS = ("kill the program", "kill a worker", "stop a worker", "fill the disk", "flip a byte")
DISK = "24m"


def produced(directory: Path) -> dict[str, bytes]:
    """Everything that must not depend on how a run went."""
    kinds = ("shards/*.shard", "results/*", "summary.json")
    files = [file for kind in kinds for file in directory.glob(kind)]
    return {str(file.relative_to(directory)): file.read_bytes() for file in files}


def processes() -> dict[int, tuple[int, str]]:
    """Parent and command line of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found[int(entry.name)] = parent, command
    return found


def workers(program: int) -> list[int]:
    """Ray's, those that were started anew, and those forked from the program's server."""
    every = processes()
    servers = [
        pid
        for pid, (parent, command) in every.items()
        if parent == program and "forkserver" in command
    ]
    return [
        pid
        for pid, (parent, command) in every.items()
        if command.startswith("ray::_Remote")
        or (parent == program and "spawn_main" in command)
        or parent in servers
    ]


class StoppedClock:
    """Counts the time in which a worker of this program is stopped."""

    def __init__(self) -> None:
        self.now, self.last = 0.0, time.monotonic()

    def __call__(self) -> float:
        last, self.last = self.last, time.monotonic()
        if any(state(pid) == "T" for pid in workers(os.getpid())):
            self.now += self.last - last
        return self.now


def state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "ended"


def main_with_clock(engine: str, *command: str) -> None:
    """Run floatscope with a short patience that a busy machine does not use up."""
    from floatscope import cli
    from floatscope.engine import local, ray_engine
    from floatscope.engine.hanging import ListeningClock

    for module in (local, ray_engine):
        module.ListeningClock = partial(ListeningClock, clock=StoppedClock())
    sys.argv = ["floatscope", *command, "--engine", f"{engine},patience=5", "--workers", "2"]
    cli.main()


class Attack:
    """One engine, its unbroken run, and the faults that are left."""

    def __init__(self, engine: str, folder: Path, faults: Counter, seed: int) -> None:
        self.engine, self.folder, self.left = engine, folder, faults
        self.rng, self.done, self.rounds = random.Random(seed), Counter(), 0

    def start(self, out: Path) -> subprocess.Popen:
        program = (
            "import sys; from tests.attacks import faults; faults.main_with_clock(*sys.argv[1:])"
        )
        command = [sys.executable, "-c", program, self.engine, *STUDY]
        log = open(self.folder / "said.txt", "ab")  # noqa: SIM115 (the program's own)
        return subprocess.Popen(
            [*command, "--out", out], stdout=log, stderr=log, start_new_session=True
        )

    def finish(self, out: Path) -> int:
        return self.start(out).wait(LIMIT)

    def run(self) -> None:
        assert self.finish(self.folder / "unbroken") == 0
        expected = produced(self.folder / "unbroken")
        assert expected
        while self.left.total():
            self.rounds += 1
            with disk(self.folder / "disk", self.left["fill the disk"] > 0) as room:
                out = room / f"run-{self.rounds}"
                # A byte is flipped between two programs, also in a run that is complete.
                while self.attacked(out) != 0 or self.left["flip a byte"] > 0:
                    pass
                found = produced(out)
            assert found.keys() == expected.keys(), set(found) ^ set(expected)
            other = [name for name in expected if found[name] != expected[name]]
            assert not other, f"other bytes: {other}"
            print(f"{self.engine}: round {self.rounds} whole; {dict(self.done)}", flush=True)

    def attacked(self, out: Path) -> int:
        """The program's end, after what has happened to it."""
        if self.left["flip a byte"] and self.flip(out):
            self.count("flip a byte")
        program = self.start(out)
        while (kind := self.next()) and self.moment(program, out):
            if self.strike(kind, program, out):
                self.count(kind)
        code = program.wait(LIMIT)
        self.clear(out)
        return code

    def next(self) -> str | None:
        choice = [kind for kind in KINDS[:4] if self.left[kind] > 0]
        return self.rng.choice(choice) if choice else None

    def moment(self, program: subprocess.Popen, out: Path) -> bool:
        """A while after something more is stored, or a run of many faults would never end."""
        before = self.stored(out)
        until(
            lambda: program.poll() is not None or self.stored(out) > before,
            "something is stored, or the program ends",
        )
        try:
            program.wait(self.rng.uniform(0, 3))
        except subprocess.TimeoutExpired:
            return True
        return False

    def strike(self, kind: str, program: subprocess.Popen, out: Path) -> bool:
        if kind == "kill the program":
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()
            return True
        if kind == "fill the disk":
            filler = out.parent / "filler"
            with contextlib.suppress(OSError), filler.open("wb") as file:
                while True:
                    file.write(bytes(2**16))
                    file.flush()
            return filler.exists()
        here = workers(program.pid)
        if not here:
            return False
        with contextlib.suppress(ProcessLookupError):
            number = signal.SIGKILL if kind == "kill a worker" else signal.SIGSTOP
            os.kill(self.rng.choice(here), number)
            return True
        return False

    def clear(self, out: Path) -> None:
        (out.parent / "filler").unlink(missing_ok=True)
        until(
            lambda: not any(command.startswith("ray::") for _, command in processes().values()),
            "Ray ends",
        )

    def stored(self, out: Path) -> int:
        """Stores that the log tells of: they go on also where shards are written anew."""
        log = out / "log.jsonl"
        return log.read_text(errors="replace").count('"event": "stored"') if log.exists() else 0

    def flip(self, out: Path) -> bool:
        shards = sorted(out.glob("shards/*.shard"))
        if not shards:
            return False
        shard = self.rng.choice(shards)
        data = bytearray(shard.read_bytes())
        data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        shard.write_bytes(data)
        return True

    def count(self, kind: str) -> None:
        self.left[kind] -= 1
        self.done[kind] += 1


@contextlib.contextmanager
def disk(folder: Path, small: bool):
    folder.mkdir(exist_ok=True)
    if small:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        if small:
            subprocess.run(["umount", "-l", folder], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=ENGINES, default="local")
    for name, count in {"kills": 20, "stops": 10, "full": 5, "flips": 10, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    given = parser.parse_args()
    full = given.full
    if os.geteuid() != 0 and full:
        print("full disks are left out: only root may mount a small file system")
        full = 0
    whole = given.kills // 2
    counts = (whole, given.kills - whole, given.stops, full, given.flips)
    faults = Counter(dict(zip(KINDS, counts, strict=True)))
    with tempfile.TemporaryDirectory(prefix="floatscope-faults-") as folder:
        attack = Attack(given.engine, Path(folder), faults, given.seed)
        try:
            attack.run()
        except BaseException:
            print((Path(folder) / "said.txt").read_text(errors="replace")[-3000:])
            raise
    print(json.dumps({"engine": given.engine, "rounds": attack.rounds, **attack.done}))


if __name__ == "__main__":
    main()

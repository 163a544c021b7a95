"""What a command says of its progress: a bar on a terminal, a line every few seconds in a log."""

import ast
import io
import threading
from pathlib import Path

import pytest
from waiting import LIMIT

import floatscope
from floatscope.cli import progress
from floatscope.cli.app import err
from floatscope.cli.progress import Display

CLI = Path(floatscope.__file__).parent / "cli"


class Clock:
    """A clock that goes when a display waits for its next line, `count` times."""

    def __init__(self, count, change=lambda number: None):
        self.now, self.left, self.change = 0.0, count, change
        self.over = threading.Event()

    def __call__(self):
        return self.now

    def wait(self, over, seconds):
        if not self.left:
            self.over.set()
            return over.wait(LIMIT)
        self.left -= 1
        self.now += seconds
        self.change(self.left)
        return False


@pytest.fixture
def log(monkeypatch):
    """Standard error as a file."""
    file = io.StringIO()
    monkeypatch.setattr(err, "_file", file)
    monkeypatch.setattr(err, "_force_terminal", False)
    return file


def test_a_log_has_a_line_every_15_seconds_with_what_is_done_and_left(log, monkeypatch):
    """Whether anything was told in between or not, as while a model is loaded."""

    def change(number):
        if number == 1:
            running = {"mdm-trace-003": 0.25, "arm-\x1b[2J": 0.5}
            display.update("running", completed=4, total=12, running=running, seconds_left=100.0)

    clock = Clock(4, change)
    monkeypatch.setattr(progress, "_wait", clock.wait)
    display = Display("starting", "shards", clock=clock)
    with display:
        assert clock.over.wait(LIMIT)
    assert progress.LINE_SECONDS <= 15
    assert log.getvalue().splitlines() == [
        "starting: 12 s elapsed",
        "starting: 24 s elapsed",
        "running: 4 of 12 shards, mdm-trace-003 25%, arm-\\x1b[2J 50%, 36 s elapsed, 2 min left",
        "running: 4 of 12 shards, mdm-trace-003 25%, arm-\\x1b[2J 50%, 48 s elapsed, 2 min left",
    ]


def test_the_time_left_is_estimated_from_what_was_done_since_the_first_report():
    now = 100.0
    display = Display("tracing", "steps", 50, clock=lambda: now)
    assert display.line() == "tracing: 0 of 50 steps, 0 s elapsed"
    now = 160.0  # a model was loaded
    display.update(completed=10)
    assert display.line() == "tracing: 10 of 50 steps, 60 s elapsed"
    now = 170.0
    display.update(completed=20)
    assert display.line() == "tracing: 20 of 50 steps, 70 s elapsed, 30 s left"
    display.update(completed=50)
    assert display.line() == "tracing: 50 of 50 steps, 70 s elapsed"


def test_many_running_shards_are_counted_and_not_all_named():
    display = Display("running", "shards", 9, clock=lambda: 0.0)
    display.update(running={f"s{i}": 0.1 for i in range(6)})
    assert (
        display.line()
        == "running: 0 of 9 shards, s0 10%, s1 10%, s2 10%, s3 10%, 2 more, 0 s elapsed"
    )


def test_a_log_that_cannot_be_written_does_not_end_the_work(log, monkeypatch):
    clock = Clock(2)
    monkeypatch.setattr(progress, "_wait", clock.wait)
    log.close()
    with Display("running", clock=clock):
        assert clock.over.wait(LIMIT)


def test_a_terminal_has_a_bar_and_no_lines(log, monkeypatch):
    monkeypatch.setattr(err, "_force_terminal", True)
    monkeypatch.setenv("TERM", "xterm")
    with Display("a [b] {c}", "shards", 4) as display:
        display.update(completed=1, running={"x": 0.5}, seconds_left=60.0)
    said = log.getvalue()
    assert "a [b] {c}" in said and "1 of 4 shards, 60 s left" in said and "elapsed" not in said
    assert display._thread is None


def test_every_command_shows_its_progress_in_the_same_way():
    """No command draws a bar or a spinner of its own, which a log would not show."""
    for path in CLI.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and path.name != "progress.py":
                assert node.module not in ("rich.progress", "rich.live", "rich.status"), path
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("status", "track"), path


@pytest.mark.filterwarnings("ignore::UserWarning")  # few examples
def test_lines_of_a_study_an_evaluation_and_a_trace_say_how_far_they_are(
    command_line, tmp_path, shallow_pair, pair_kept, monkeypatch
):
    said, update = [], Display.update

    def told(self, *args, **options):
        update(self, *args, **options)
        said.append(self.line())

    monkeypatch.setattr(Display, "update", told)
    monkeypatch.chdir(tmp_path)
    few = ("--data", "world:one", "--limit", 2, "--length", 4)
    small = "--questions 2 --controls 0 --view 0 --workers 1 --out run".split()
    command_line("study", "knowledge", "--model", "pair/mdm", *few, *small)
    shards = len(list(tmp_path.glob("run/shards/*.shard")))
    assert said[0].startswith(f"running: 0 of {shards} shards, ")
    first = next(tmp_path.glob("run/shards/*.shard")).stem
    assert any(f"shards, {first} 0%, " in line for line in said)
    assert said[-1].startswith(f"writing the report: {shards} of {shards} shards, ")
    said.clear()
    command_line("verify", "run", "--shards", 1)
    assert said[0].startswith("verifying ") and "1 of 1 shards" in said[-1]
    said.clear()
    command_line("evaluate", "--model", "pair/mdm", *few)
    assert said[-1].startswith("pair/mdm: 2 of 2 questions, ")
    said.clear()
    command_line("trace", "--model", "pair/mdm", "--prompt", "Who?", "--length", 4)
    assert [line.split(",")[0] for line in said] == [
        f"tracing: {i} of 4 steps" for i in range(1, 5)
    ]

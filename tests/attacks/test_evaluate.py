"""`evaluate --out` says first that it cannot save, and whatever stops it costs one batch."""

import json
import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

import floatscope as fs
from floatscope.models import tiny
from floatscope.tasks import asking
from floatscope.tasks.answer_files import is_answers
from floatscope.tasks.keeping import kept

CHAPTER = "Ten years of work.\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "q.jsonl"
    rows = [
        {"question": f"Who {'really ' * i}is {i}?", "answers": [f"é{i}"], "passages": [f"It is {i}."]}
        for i in range(5)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def command(checkpoints, data):
    """Two models, two settings each, drawn at random: three batches of each, twelve in all."""
    return (
        *("evaluate", "--model", checkpoints["LLaDA"], "--model", checkpoints["Llama"]),
        *("--data", data, "--length", 4, "--batch-size", 2, "--set", "temperature=1.0"),
        *("--intervene", "mask-tokens:regions=question"),
    )


@pytest.fixture
def batches(monkeypatch):
    """How many batches were decoded, and what befalls one of them."""

    class Batches:
        begun, at, mishap = 0, None, None

        def before(self, at, mishap):
            """Befall the batch after so many more."""
            self.at, self.mishap = self.begun + at, mishap

        def counted(self):
            begun, self.begun = self.begun, 0
            return begun

    real, batches = asking.decode, Batches()

    def decode(*args):
        if batches.begun == batches.at:
            batches.at = None
            batches.mishap()
        batches.begun += 1
        return real(*args)

    monkeypatch.setattr(asking, "decode", decode)
    return batches


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, command):
    """The bytes of a file of answers that nothing disturbed, by its ending."""
    from floatscope import cli

    folder = tmp_path_factory.mktemp("unbroken")

    def of(ending, patch=pytest.MonkeyPatch()):
        path = folder / f"a{ending}"
        if not path.exists():
            with patch.context() as argv, pytest.raises(SystemExit) as end:
                argv.setattr(sys, "argv", ["floatscope", *map(str, command), "--out", str(path)])
                cli.main()
            assert not end.value.code
            assert [one.name for one in folder.glob(f".a{ending}*")] == []
        return path.read_bytes()

    return of


def interrupt():
    raise KeyboardInterrupt


# The target, before anything is loaded ------------------------------------------------------------


def prepared(kind, folder):
    """A path at which no answers can be saved, even with --overwrite; and what the error says."""
    path, mine = folder / "a.csv", folder / "mine.csv"
    mine.write_text(CHAPTER)
    if kind == "a file":
        mine.rename(path)
    elif kind == "an empty file":
        path.touch()
    elif kind == "a directory":
        path.mkdir()
    elif kind == "a link":
        path.symlink_to(mine)
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a file as a directory":
        return mine / "a.csv", "mine.csv could not be written"
    elif kind == "nowhere":
        return folder.joinpath("/proc/nowhere/a.csv"), "/proc/nowhere could not be written"
    elif kind == "a long name":  # room for the name itself, not for what is written beside it
        return folder / f"{'a' * 240}.csv", "File name too long"
    elif kind == "parquet of another":
        path = folder / "a.parquet"
        path.write_text(CHAPTER)
    elif kind == "jsonl of another":
        path = folder / "a.jsonl"
        path.write_text('["model", "condition"]\n')
    return path, "it is not overwritten"


@pytest.mark.parametrize(
    "kind",
    ["a file", "an empty file", "a directory", "a link", "a pipe", "a file as a directory", "nowhere"]
    + ["a long name", "parquet of another", "jsonl of another"],
)
def test_what_cannot_be_saved_is_said_before_a_model_is_loaded(ended, data, tmp_path, kind):
    path, says = prepared(kind, tmp_path)
    before = sorted((one.name, one.is_symlink() or one.lstat().st_size) for one in tmp_path.iterdir())
    done = ended("evaluate", "--model", "nowhere", "--data", data, "--out", path, "--overwrite")
    assert done.returncode in (2, 6) and says in done.stderr and "nowhere:" not in done.stderr
    if "not overwritten" in says:
        done = ended("evaluate", "--model", "nowhere", "--data", data, "--out", path)
        assert done.returncode == 2 and "exists" in done.stderr
        assert "--overwrite" not in done.stderr  # no use advising that
    after = sorted((one.name, one.is_symlink() or one.lstat().st_size) for one in tmp_path.iterdir())
    assert after == before


def test_a_full_disk_is_said_before_a_model_is_loaded(ended, data, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        done = ended("evaluate", "--model", "nowhere", "--data", data, "--out", tmp_path / "a.csv")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.returncode == 6 and "a.csv could not be written: File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_kept_nothing_leaves_nothing_and_may_be_corrected(
    ended, command, batches, tmp_path
):
    out = tmp_path / "new" / "a.csv"  # the folder is made
    wrong = ended("evaluate", "--model", "nowhere", "--data", "world:one", "--out", out)
    assert wrong.returncode == 3 and list(out.parent.iterdir()) == []
    with kept(out.parent / ".a.csv.answers", {"model": "killed before its first batch"}):
        pass
    assert ended(*command, "--out", out).returncode == 0
    assert batches.counted() == 12
    assert [one.name for one in out.parent.iterdir()] == ["a.csv"]


# Stopped, and again -------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_stopped_anywhere_and_again_the_file_is_the_same(
    ended, command, batches, unbroken, tmp_path, ending
):
    out = tmp_path / f"a{ending}"
    whole, kept_now = unbroken(ending), 0
    batches.counted()
    for at, answers in ((0, 0), (2, 4), (5, 14)):  # 2 + 2 + 1 answers in a setting
        batches.before(at, interrupt)
        done = ended(*command, "--out", out)
        assert done.returncode == 130 and not out.exists()
        kept_now += answers
        if kept_now:
            assert f"stopped: {kept_now - 1 * (kept_now == 18)} answers are kept in" in done.stderr
            assert "Run the same command again to go on from there." in done.stderr
        else:
            assert list(tmp_path.iterdir()) == []
    done = ended(*command, "--out", out)
    assert done.returncode == 0, done.stderr
    assert batches.counted() == 12  # none of them twice
    assert out.read_bytes() == whole and is_answers(out)
    assert [one.name for one in tmp_path.iterdir()] == [out.name]

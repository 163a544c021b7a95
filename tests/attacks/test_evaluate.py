"""`evaluate --out` says first that it cannot save, and whatever stops it costs one batch."""

import json
import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import floatscope as fs
from floatscope.models import tiny
from floatscope.tasks import asking
from floatscope.tasks.answer_files import is_answers
from floatscope.tasks.keeping import open_answers

CHAPTER = "Ten years of work.\n"


def saved(path):
    """Flags with which the answers are saved at this path."""
    return "--out", path.parent, "--format", path.suffix.removeprefix(".")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "q.jsonl"
    rows = [
        {
            "question": f"Who {'really ' * i}is {i}?",
            "answers": [f"é{i}"],
            "passages": [f"It is {i}."],
        }
        for i in range(5)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def small(checkpoints, data):
    """One model, drawn at random: three batches, of 2, 2 and 1 questions."""
    return (
        *("evaluate", "--model", checkpoints["LLaDA"], "--data", data),
        *("--length", 4, "--batch-size", 2, "--sampler", "temperature=1.0"),
    )


@pytest.fixture(scope="module")
def large(small, checkpoints):
    """Two models, two settings each: twelve batches."""
    return (
        *(*small, "--model", checkpoints["Llama"]),
        *("--intervene", "mask-tokens,regions=question"),
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


@pytest.fixture
def unbroken(ended, tmp_path_factory, batches):
    """The bytes of a file of answers that nothing disturbed."""

    def of(command, ending):
        path = tmp_path_factory.mktemp("unbroken") / f"answers{ending}"
        done = ended(*command, *saved(path))
        assert done.returncode == 0, done.stderr
        assert [one.name for one in path.parent.iterdir()] == [path.name]
        batches.counted()
        return path.read_bytes()

    return of


def interrupt():
    raise KeyboardInterrupt


# The target, before anything is loaded ------------------------------------------------------------


def prepared(kind, folder):
    """A path at which no answers can be saved, even with --overwrite; and what the error says."""
    path, mine = folder / "answers.csv", folder / "mine.txt"
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
        return mine / "answers.csv", "mine.txt could not be written"
    elif kind == "nowhere":
        return folder.joinpath("/proc/nowhere/answers.csv"), "/proc/nowhere could not be written"
    elif kind == "a long name":  # room for the name itself, not for what is written beside it
        return folder / ("a" * 240) / "answers.csv", "is too long"
    elif kind == "parquet of another":
        path = folder / "answers.parquet"
        path.write_text(CHAPTER)
    elif kind == "jsonl of another":
        path = folder / "answers.jsonl"
        path.write_text('["model", "condition"]\n')
    return path, "it is not overwritten"


KINDS = (
    "a file; an empty file; a directory; a link; a pipe; a file as a directory; nowhere; a long name; "
    "parquet of another; jsonl of another"
)


@pytest.mark.parametrize("kind", KINDS.split("; "))
def test_what_cannot_be_saved_is_said_before_a_model_is_loaded(ended, data, tmp_path, kind):
    path, says = prepared(kind, tmp_path)
    before = sorted(
        (one.name, one.is_symlink() or one.lstat().st_size) for one in tmp_path.iterdir()
    )
    done = ended("evaluate", "--model", "nowhere", "--data", data, *saved(path), "--overwrite")
    assert done.returncode in (2, 6) and says in done.stderr and "nowhere:" not in done.stderr
    if "not overwritten" in says:
        done = ended("evaluate", "--model", "nowhere", "--data", data, *saved(path))
        assert done.returncode == 2 and "exists" in done.stderr
        assert "--overwrite" not in done.stderr  # no use advising that
    after = sorted(
        (one.name, one.is_symlink() or one.lstat().st_size) for one in tmp_path.iterdir()
    )
    assert after == before


def test_a_full_disk_is_said_before_a_model_is_loaded(ended, data, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        done = ended(
            "evaluate", "--model", "nowhere", "--data", data, *saved(tmp_path / "answers.csv")
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (
        done.returncode == 6 and "answers.csv could not be written: File too large" in done.stderr
    )
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_kept_nothing_leaves_nothing_and_may_be_corrected(
    ended, small, batches, tmp_path
):
    out = tmp_path / "new" / "answers.csv"
    wrong = ended("evaluate", "--model", "nowhere", "--data", "world:one", *saved(out))
    assert wrong.returncode == 3 and not out.parent.exists()
    with open_answers(
        out.parent / ".answers.csv.answers", {"model": "killed before its first batch"}
    ):
        pass
    assert ended(*small, *saved(out)).returncode == 0
    assert batches.counted() == 3
    assert [one.name for one in out.parent.iterdir()] == ["answers.csv"]


# Stopped, and again -------------------------------------------------------------------------------


def test_stopped_anywhere_and_again_the_file_is_the_same(ended, large, batches, unbroken, tmp_path):
    out, whole = tmp_path / "answers.csv", unbroken(large, ".csv")
    for at, answers in ((0, 0), (2, 4), (5, 12)):
        batches.before(at, interrupt)
        done = ended(*large, *saved(out))
        assert done.returncode == 130 and not out.exists()
        if answers:
            assert f"stopped: {answers} answers are stored in" in done.stderr
            assert "Run the same command again to continue." in done.stderr
        else:
            assert list(tmp_path.iterdir()) == []
    done = ended(*large, *saved(out))
    assert done.returncode == 0 and "resuming: 12 answers are stored" in done.stderr
    assert batches.counted() == 12  # none of them twice
    assert out.read_bytes() == whole and is_answers(out)
    assert [one.name for one in tmp_path.iterdir()] == ["answers.csv"]


KILLED_AT_THE_THIRD = """
import os, signal, sys
from floatscope import cli
from floatscope.tasks import asking

real, begun = asking.decode, []

def decode(*args):
    begun.append(args)
    if len(begun) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)

asking.decode = decode
cli.main()
"""


def test_killed_it_goes_on_from_the_last_batch(ended, small, batches, unbroken, tmp_path):
    out, whole = tmp_path / "answers.parquet", unbroken(small, ".parquet")
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_AT_THE_THIRD, *map(str, small), *saved(out)], env=path
    )
    assert killed.returncode == -signal.SIGKILL and not out.exists()
    (tmp_path / ".answers.parquet.123.partial").write_bytes(
        whole[:50]
    )  # or while the file was written
    done = ended(*small, *saved(out))
    assert done.returncode == 0 and "resuming: 4 answers are stored" in done.stderr
    assert batches.counted() == 1 and out.read_bytes() == whole and is_answers(out)
    assert [one.name for one in tmp_path.iterdir()] == ["answers.parquet"]


def test_a_disk_that_fills_and_a_target_that_is_taken_cost_nothing(
    ended, small, batches, unbroken, tmp_path
):
    out, whole = tmp_path / "answers.jsonl", unbroken(small, ".jsonl")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    batches.before(1, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1])))
    try:
        done = ended(*small, *saved(out))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.returncode == 6 and "could not be written: File too large" in done.stderr
    assert "2 answers are stored" in done.stderr and batches.counted() == 2
    batches.before(0, out.mkdir)  # by another, after it was found free
    done = ended(*small, *saved(out))
    assert done.returncode == 6 and "answers.jsonl could not be written" in done.stderr
    assert "5 answers are stored" in done.stderr and batches.counted() == 2
    out.rmdir()
    assert ended(*small, *saved(out)).returncode == 0
    assert batches.counted() == 0 and out.read_bytes() == whole and is_answers(out)


def test_a_model_that_cannot_be_loaded_costs_no_answer_of_the_first(
    ended, small, batches, tmp_path
):
    out, second = tmp_path / "answers.csv", tmp_path / "second"
    tiny.write("LLaDA", second)  # files that are damaged would be refused before the first
    (weights,) = second.glob("*.safetensors")
    nothing = {name: torch.full_like(t, torch.nan) for name, t in load_file(weights).items()}
    save_file(nothing, weights, metadata={"format": "pt"})
    done = ended(*small, "--model", second, *saved(out))
    assert done.returncode == 3 and "5 answers are stored" in done.stderr
    weights.unlink()
    tiny.write("LLaDA", second)
    done = ended(*small, "--model", second, *saved(out))
    assert done.returncode == 0 and batches.counted() == 6
    assert len(out.read_text().splitlines()) == 11


def test_a_second_ctrl_c_changes_nothing(ended, small, batches, monkeypatch, tmp_path):
    """It comes while the first is cleaned up after, and again while that is said."""
    from floatscope.cli.app import err
    from floatscope.cli.progress import Display

    leave, say, pressed = Display.__exit__, err.print, []

    def press():
        pressed.append("Ctrl-C")
        os.kill(os.getpid(), signal.SIGINT)

    def left(display, kind, *error):
        if kind is not None:
            press()
        leave(display, kind, *error)

    def said(*texts, **options):
        if "stopped" in str(texts):
            press()
        say(*texts, **options)

    monkeypatch.setattr(Display, "__exit__", left)
    monkeypatch.setattr(err, "print", said)
    batches.before(1, press)
    done = ended(*small, *saved(tmp_path / "answers.csv"))
    assert done.returncode == 130 and "stopped: 2 answers are stored in" in done.stderr
    assert len(pressed) == 3


def test_what_is_printed_comes_after_what_is_saved(ended, small, monkeypatch, tmp_path):
    def gone(every):
        raise fs.UsageError("the terminal has gone")

    monkeypatch.setattr("floatscope.cli.evaluate.score_table", gone)
    assert ended(*small, *saved(tmp_path / "answers.csv")).returncode == 2
    assert is_answers(tmp_path / "answers.csv")


# Another question ---------------------------------------------------------------------------------


def changed(small, **flags):
    given = dict(zip(small[1::2], small[2::2], strict=True))
    given |= {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
    return ("evaluate", *(word for pair in given.items() for word in pair))


def test_kept_answers_are_not_mixed_with_another_question(
    ended, small, data, batches, unbroken, tmp_path
):
    out = tmp_path / "answers.csv"
    other = changed(small, seed=1)
    whole = unbroken(other, ".csv")
    batches.before(1, interrupt)
    assert ended(*small, *saved(out)).returncode == 130
    more = tmp_path / "more.jsonl"
    more.write_text(data.read_text().replace("é0", "nobody"))
    for command, named in (
        (other, "request.seed is 0 there, 1 now"),
        (changed(small, batch_size=3), "request.batch_size is 2 there, 3 now"),
        (changed(small, model="nowhere"), "request.model is"),
        (changed(small, data=more), "request.records is"),
        ((*small, "--condition", "closed-book"), "request.condition is"),
        ((*small, "--no-resume"), "already contains a run"),
    ):
        done = ended(*command, *saved(out))
        assert done.returncode == 6 and named in done.stderr, done.stderr
        assert "--overwrite" in done.stderr
    assert batches.counted() == 1
    done = ended(*small, "--overwrite", *saved(out))  # the same question: nothing to replace
    assert done.returncode == 0 and batches.counted() == 2
    batches.before(1, interrupt)
    assert ended(*small, "--overwrite", *saved(out)).returncode == 130
    assert ended(*other, "--overwrite", *saved(out)).returncode == 0
    assert batches.counted() == 4 and out.read_bytes() == whole
    assert sorted(one.name for one in tmp_path.iterdir()) == ["answers.csv", "more.jsonl"]


def test_other_weights_under_the_same_name(ended, small, batches, unbroken, tmp_path):
    out, model = tmp_path / "answers.csv", tmp_path / "model"
    small = changed(small, model=model)
    tiny.write("LLaDA", model, tiny.Shape(seed=1))
    batches.before(1, interrupt)
    assert ended(*small, *saved(out)).returncode == 130
    tiny.write("LLaDA", model, tiny.Shape(seed=2))
    whole = unbroken(small, ".csv")
    done = ended(*small, *saved(out))
    assert done.returncode == 6 and "asked.model.fingerprint is" in done.stderr
    assert batches.counted() == 0 and "--overwrite" in done.stderr
    done = ended(*small, *saved(out), "--overwrite")
    assert done.returncode == 0 and "asked again: 0-000-00000: asked.model.fing" in done.stderr
    assert out.read_bytes() == whole


def test_a_damaged_batch_is_asked_again_and_named(ended, small, batches, unbroken, tmp_path):
    out, whole = tmp_path / "answers.csv", unbroken(small, ".csv")
    batches.before(2, interrupt)
    ended(*small, *saved(out))
    one = tmp_path / ".answers.csv.answers" / "shards" / "0-000-00001.shard"
    one.write_bytes(one.read_bytes()[:-7])
    done = ended(*small, *saved(out))
    assert "resuming: 2 answers are stored" in done.stderr
    assert "asked again: 0-000-00001: its file has" in done.stderr
    assert batches.counted() == 4 and out.read_bytes() == whole


def test_two_at_once(ended, small, tmp_path):
    with open_answers(tmp_path / ".answers.csv.answers"):
        done = ended(*small, *saved(tmp_path / "answers.csv"))
    assert done.returncode == 6 and f"in use by process {os.getpid()}" in done.stderr


# From Python --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["LLaDA", "Llama"])
def test_from_python_too(models, name, data, batches, tmp_path):
    model, records = models[name], fs.tasks.read_records(data).records
    sampler = {
        "LLaDA": fs.samplers.Remask(length=4, steps=8, temperature=1.0),
        "Llama": fs.Autoregressive(length=4, temperature=1.0),
    }[name]
    whole = fs.evaluate(model, records, sampler, batch_size=2)
    batches.before(2, interrupt)
    with pytest.raises(KeyboardInterrupt):
        fs.evaluate(model, records, sampler, batch_size=2, keep=tmp_path / "kept")
    batches.counted()
    again = fs.evaluate(model, records, sampler, batch_size=2, keep=tmp_path / "kept")
    assert batches.counted() == 1
    assert again.table.equals(whole.table)
    for one, other in zip(again.decodings, whole.decodings, strict=True):
        assert one.prompt == other.prompt and one.ended == other.ended
        for part in ("canvas", "change", "confidence", "block"):
            np.testing.assert_array_equal(getattr(one, part), getattr(other, part))
            assert getattr(one, part).dtype == getattr(other, part).dtype
    with pytest.raises(fs.RunError, match=r"asked\.batch_size is 2 there, 3 now"):
        fs.evaluate(model, records, sampler, batch_size=3, keep=tmp_path / "kept")
    with pytest.raises(fs.RunError, match=r"asked\.prompts is"):
        fs.evaluate(model, records[1:], sampler, batch_size=2, keep=str(tmp_path / "kept"))
    hidden = fs.interventions.MaskTokens(regions="question")
    with hidden(model), pytest.raises(fs.UsageError, match="Pass it as intervention="):
        fs.evaluate(model, records, sampler, batch_size=2, keep=tmp_path / "kept")


def test_a_sampler_that_reads_another_file_asks_another_question(llada, data, tmp_path):
    table = tmp_path / "f.npy"
    records = fs.tasks.read_records(data).records[:2]
    for power in (1, 2):
        shares = np.arange(1.0, llada.vocab_size + 1) ** power
        np.save(table, shares / shares.sum())
        sampler = fs.samplers.PositionCalibrated(length=4, frequencies=table)
        if power == 1:
            fs.evaluate(llada, records, sampler, keep=tmp_path / "kept")
    with pytest.raises(fs.RunError, match=r"asked\.files\.frequencies is"):
        fs.evaluate(llada, records, sampler, keep=tmp_path / "kept")

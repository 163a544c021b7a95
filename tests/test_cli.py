"""The command line as a person uses it: real processes, their output and their exit codes."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

import floatscope as fs
from floatscope import cli


def run(*args):
    """In a process of its own, as a person would."""
    command = [sys.executable, "-W", "error::UserWarning", "-m", "floatscope.cli", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def inside(monkeypatch, capsys):
    """The same in this process, which need not import torch again."""

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["floatscope", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return SimpleNamespace(
            returncode=ended.value.code or 0, stdout=printed.out, stderr=printed.err
        )

    return call


def test_trace_prints_and_saves(checkpoints, tmp_path):
    out = tmp_path / "t.zarr"
    done = run(
        "trace",
        "--model",
        checkpoints["LLaDA"],
        "--prompt",
        "Hello [b]there",
        "--length",
        8,
        "--steps",
        4,
        "--out",
        out,
        "--keep",
        "mass,entropy",
        "--layers",
        "0:2",
    )
    assert done.returncode == 0, done.stderr
    assert "Where attention rests" in done.stdout
    trace = fs.Trace.load(out)
    assert trace.n_steps == 4
    assert trace.data.sizes["layer"] == 2
    assert "entropy" in trace.data
    assert "flow" not in trace.data


def test_nothing_is_overwritten(checkpoints, tmp_path, inside):
    (tmp_path / "t.zarr").mkdir()
    done = inside("trace", "--model", "unused", "--prompt", "x", "--out", tmp_path / "t.zarr")
    assert done.returncode == 2
    assert "exists" in done.stderr


def test_an_interrupt_is_130(checkpoints, inside, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("floatscope.instrument.load", interrupted)
    assert inside("trace", "--model", "unused", "--prompt", "x").returncode == 130


def test_trace_of_a_file(checkpoints, tmp_path, inside):
    data = tmp_path / "p.jsonl"
    data.write_text("\n".join(json.dumps({"prompt": p}) for p in ("one", "two", "three")))
    done = inside(
        "trace",
        "--model",
        checkpoints["Llama"],
        "--data",
        data,
        "--limit",
        2,
        "--length",
        4,
        "--out",
        tmp_path / "traces",
    )
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in (tmp_path / "traces").iterdir()) == ["00000.zarr", "00001.zarr"]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--prompt", ""], 2, "prompt is empty"),
        ([], 2, "either --prompt or --data"),
        (["--prompt", "x", "--steps", "0"], 2, "steps = 0"),
        (["--prompt", "x", "--length", "8", "--steps", "9"], 2, "9 steps for 8 tokens"),
        (["--prompt", "x", "--block-length", "5"], 2, "does not divide"),
        (["--prompt", "x", "--sampler", "magic"], 2, "no sampler 'magic'"),
        (["--prompt", "x", "--sampler", "threshold", "--set", "colour=3"], 2, "no such field"),
        (["--prompt", "x", "--sampler", "autoregressive"], 2, "fills masks"),
        (["--prompt", "x", "--keep", "nothing"], 2, "no statistic 'nothing'"),
        (["--prompt", "x", "--layers", "a:b"], 2, "--layers a:b"),
        (["--prompt", "x" * 600], 2, "exceed the context"),
        (["--data", "nowhere.jsonl"], 2, "nowhere.jsonl"),
        (["--prompt", "x", "--out", "/proc/nope/t.zarr"], 4, "could not be written"),
    ],
)
def test_errors_are_one_line_and_a_code(checkpoints, inside, args, code, words):
    done = inside("trace", "--model", checkpoints["LLaDA"], *args)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_line_is_named(checkpoints, tmp_path, inside):
    data = tmp_path / "p.jsonl"
    data.write_text('{"prompt": "fine"}\n{"prompt": }\n')
    done = inside("trace", "--model", checkpoints["Llama"], "--data", data)
    assert done.returncode == 2
    assert "line 2" in done.stderr


def test_a_model_that_is_not_there(inside):
    done = inside("trace", "--model", "./nowhere", "--prompt", "x")
    assert done.returncode == 3
    assert "no such model" in done.stderr


def test_models_and_help_and_version(inside):
    listing = inside("models")
    assert listing.returncode == 0
    for name in ("LLaDA", "Dream", "Llama", "Qwen2", "Qwen3", "confidence", "remask"):
        assert name in listing.stdout
    text = inside("trace", "--help").stdout
    assert "Examples" in text
    assert inside("--version").stdout.startswith("floatscope ")


def test_help_does_not_wait_for_torch():
    code = "import sys, floatscope.cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_evaluate_asks_compares_and_saves(inside, tmp_path):
    out = tmp_path / "answers.jsonl"
    done = inside(
        "evaluate", "--model", "pair/arm", "--data", "world:three", "--limit", 6, "--length", 10,
        "--condition", "as-is", "--condition", "closed-book",
        "--intervene", "mask-columns:k=1,control=random", "--out", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "closed-book" in done.stdout and "MaskColumns" in done.stdout
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 4 * 6
    assert {row["condition"] for row in rows} == {"as-is", "closed-book"}
    again = inside("evaluate", "--model", "pair/arm", "--data", "world:three", "--out", out)
    assert again.returncode == 2 and "exists" in again.stderr


def test_evaluate_names_the_line_or_skips_and_lists_it(inside, tmp_path):
    data = tmp_path / "q.jsonl"
    good = {"question": "Who?", "answers": ["me"], "passages": ["It was me."], "gold": 0}
    data.write_text(
        "\n".join([json.dumps(good), '{"question": "Who?"', json.dumps(good | {"answers": []})])
    )
    asked = ("evaluate", "--model", "pair/arm", "--data", data, "--length", 4)
    stopped = inside(*asked)
    assert stopped.returncode == 2
    assert "line 2" in stopped.stderr.replace("\n", "")
    done = inside(*asked, "--skip-bad")
    assert done.returncode == 0, done.stderr
    assert "left out 2:" in done.stderr
    listed = done.stderr.replace("\n", "")
    assert "line 2" in listed and "line 3" in listed and "answers" in listed


def test_frequencies_are_counted(inside, tmp_path):
    corpus, out = tmp_path / "c.txt", tmp_path / "f.npy"
    corpus.write_text("the cat and the dog\n")
    done = inside("frequencies", "--model", "pair/arm", "--out", out, corpus)
    assert done.returncode == 0, done.stderr
    assert "tokens seen" in done.stdout and out.exists()
    asked = inside(
        "evaluate", "--model", "pair/mdm", "--data", "world:one", "--limit", 2, "--length", 4,
        "--sampler", "position-calibrated", "--set", f"frequencies={out}",
    )  # fmt: skip
    assert asked.returncode == 0, asked.stderr


def test_interventions_are_listed(inside):
    listed = inside("interventions")
    assert listed.returncode == 0 and "mask-columns" in listed.stdout


def test_gpus_are_ray_s_to_give(inside, tmp_path, monkeypatch):
    """One worker a GPU; which GPU a worker has is not said from here."""
    from floatscope.cli.study import _default_workers
    from floatscope.studies import run as runs

    done = inside(
        "study", "--model", "pair/mdm", "--engine", "ray", "--device", "cuda:1", "--out", tmp_path
    )
    assert done.returncode == 2 and "Use --device cuda." in done.stderr
    done = inside("study", "--model", "pair/mdm", "--gpus", "1.5", "--out", tmp_path)
    assert done.returncode == 2 and "whole GPUs" in done.stderr
    asked = []

    def refuse(request, directory, **options):
        asked.append((options["workers"], options["gpus"]))
        raise fs.RunError("not now", "Later.")

    monkeypatch.setattr(runs, "run", refuse)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    start = ("study", "--model", "pair/mdm", "--engine", "ray", "--out", tmp_path)
    for more in ((), ("--gpus", "0.5", "--workers", "8"), ("--device", "cpu", "--workers", "2")):
        assert inside(*start, *more).returncode == 6
    assert asked == [(4, None), (8, 0.5), (2, 0)]
    assert _default_workers("cuda", "local") == 1

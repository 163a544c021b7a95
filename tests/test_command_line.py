"""The command line as a person uses it: what it prints, what it saves, and its exit codes.

In this process, which need not import torch again; test_pair.py has one in a process of its own.
"""

import json
import os
import re
import shlex
import signal

import pytest
from tiny_models import FAMILIES

import floatscope as fs
from floatscope import atomic
from floatscope.decode import SAMPLERS
from floatscope.engine import Meter
from floatscope.interventions import INTERVENTIONS
from floatscope.measures import MEASURES
from floatscope.studies import STUDIES, request_of


def test_trace_prints_and_saves(checkpoints, tmp_path, ended):
    out = tmp_path / "t.zarr"
    done = ended(
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


def test_an_existing_trace_is_not_overwritten(checkpoints, tmp_path, ended):
    (tmp_path / "t.zarr").mkdir()
    done = ended("trace", "--model", "unused", "--prompt", "x", "--out", tmp_path / "t.zarr")
    assert done.returncode == 2
    assert "exists" in done.stderr


def test_an_interrupt_exits_with_130(checkpoints, ended, monkeypatch):
    for said in ("", "stopped: 2 of 3 [shards] are stored"):

        def interrupted(*args, said=said, **options):
            raise KeyboardInterrupt(said) if said else KeyboardInterrupt

        monkeypatch.setattr("floatscope.instrument.load", interrupted)
        done = ended("trace", "--model", checkpoints["LLaDA"], "--prompt", "x")
        assert done.returncode == 130
        assert (said or "interrupted; no file was left incomplete") in done.stderr


@pytest.mark.parametrize(
    ("command", "place", "words"),
    [
        (["demo"], (atomic, "write_json"), "stopped: what is stored in"),
        (
            ["study", "--model", "pair/mdm"],
            (Meter, "state"),
            r"stopped: 0 of \d+ shards are stored in",
        ),
    ],
)
def test_an_interrupted_run_says_how_to_go_on(ended, tmp_path, monkeypatch, command, place, words):
    """Ctrl-C three times at once, before and while the engine runs; what it says can be typed."""
    right = getattr(*place)

    def interrupted(*args):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        return right(*args)

    monkeypatch.setattr(*place, interrupted)
    for more in ([], ["--resume"]):
        try:
            done = ended(*command, *more, "--workers", 1, "--out", tmp_path / "run")
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # else ignored to the end
        assert done.returncode == 130 and "Traceback" not in done.stderr
        assert re.search(words, done.stderr)
        assert "Run it again with --resume, and without --overwrite" in done.stderr


def test_trace_of_a_file(checkpoints, tmp_path, ended):
    data = tmp_path / "p.jsonl"
    data.write_text("\n".join(json.dumps({"prompt": p}) for p in ("one", "two", "three")))
    done = ended(
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
        (["--prompt", "x", "--sampler", "block_length=5"], 2, "does not divide"),
        (["--prompt", "x", "--sampler", "magic"], 2, "no sampler 'magic'"),
        (["--prompt", "x", "--sampler", "threshold,colour=3"], 2, "no such field"),
        (["--prompt", "x", "--sampler", "autoregressive"], 2, "fills masks"),
        (["--prompt", "x", "--keep", "nothing"], 2, "no statistic 'nothing'"),
        (["--prompt", "x", "--layers", "a:b"], 2, "--layers a:b"),
        (["--prompt", "x" * 600], 2, "exceed the context"),
        (["--data", "nowhere.jsonl"], 2, "nowhere.jsonl"),
        (["--prompt", "x", "--out", "/proc/nope/t.zarr"], 4, "could not be written"),
    ],
)
def test_errors_are_one_line_and_a_code(checkpoints, ended, args, code, words):
    done = ended("trace", "--model", checkpoints["LLaDA"], *args)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_line_of_a_prompt_file_is_named(checkpoints, tmp_path, ended):
    data = tmp_path / "p.jsonl"
    data.write_text('{"prompt": "fine"}\n{"prompt": }\n')
    done = ended("trace", "--model", checkpoints["Llama"], "--data", data)
    assert done.returncode == 2
    assert "line 2" in done.stderr


def test_a_missing_model_is_an_error_with_a_remedy(ended):
    done = ended("trace", "--model", "./nowhere", "--prompt", "x")
    assert done.returncode == 3
    assert "no such model" in done.stderr


def test_models_and_help_and_version(ended):
    listing = ended("models")
    assert listing.returncode == 0
    for name in (*FAMILIES, *SAMPLERS):
        assert name in listing.stdout
    text = ended("trace", "--help").stdout
    assert "Examples" in text
    assert ended("--version").stdout.startswith("floatscope ")


def test_evaluate_asks_compares_and_saves(ended, tmp_path):
    out = tmp_path / "answers"
    done = ended(
        "evaluate", "--model", "pair/arm", "--data", "world:three", "--limit", 6, "--length", 10,
        "--condition", "as-is", "--condition", "closed-book",
        "--intervene", "mask-columns,k=1,control=random", "--out", out, "--format", "jsonl",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "closed-book" in done.stdout and "MaskColumns" in done.stdout
    rows = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert len(rows) == 4 * 6
    assert {row["condition"] for row in rows} == {"as-is", "closed-book"}
    again = ended(
        "evaluate",
        "--model",
        "pair/arm",
        "--data",
        "world:three",
        "--out",
        out,
        "--format",
        "jsonl",
    )
    assert again.returncode == 2 and "exists" in again.stderr


def test_evaluate_names_the_line_or_skips_and_lists_it(ended, tmp_path):
    data = tmp_path / "q.jsonl"
    good = {"question": "Who?", "answers": ["me"], "passages": ["It was me."], "gold": 0}
    data.write_text(
        "\n".join([json.dumps(good), '{"question": "Who?"', json.dumps(good | {"answers": []})])
    )
    asked = ("evaluate", "--model", "pair/arm", "--data", data, "--length", 4)
    stopped = ended(*asked)
    assert stopped.returncode == 2
    assert "line 2" in stopped.stderr.replace("\n", "")
    done = ended(*asked, "--skip-bad")
    assert done.returncode == 0, done.stderr
    assert "left out 2:" in done.stderr
    listed = done.stderr.replace("\n", "")
    assert "line 2" in listed and "line 3" in listed and "answers" in listed


def test_frequencies_are_counted(ended, tmp_path):
    corpus, out = tmp_path / "c.txt", tmp_path / "f.npy"
    corpus.write_text("the cat and the dog\n")
    done = ended("frequencies", "--model", "pair/arm", "--out", out, corpus)
    assert done.returncode == 0, done.stderr
    assert "tokens seen" in done.stdout and out.exists()
    asked = ended(
        "evaluate", "--model", "pair/mdm", "--data", "world:one", "--limit", 2, "--length", 4,
        "--sampler", f"position-calibrated,frequencies={out}",
    )  # fmt: skip
    assert asked.returncode == 0, asked.stderr


@pytest.mark.parametrize(
    ("command", "registry"),
    [("interventions", INTERVENTIONS), ("measures", MEASURES), ("studies", STUDIES)],
)
def test_every_registered_method_is_listed(ended, command, registry):
    listed = ended(command)
    assert listed.returncode == 0
    for name in registry:
        assert name in listed.stdout


def test_gpus_of_workers_are_assigned_by_ray(ended, tmp_path, monkeypatch):
    """One worker a GPU, whatever the engine; which GPU a worker of Ray's has is not said from here."""
    from floatscope.cli.study import _default_workers
    from floatscope.studies import run as runs

    done = ended(
        "study", "--model", "pair/mdm", "--engine", "ray", "--device", "cuda:1", "--out", tmp_path
    )
    assert done.returncode == 2 and "Use --device cuda." in done.stderr
    done = ended("study", "--model", "pair/mdm", "--engine", "ray,gpus=1.5", "--out", tmp_path)
    assert done.returncode == 2 and "whole GPUs" in done.stderr
    asked = []

    def refuse(request, directory, **options):
        asked.append((options["workers"], options["gpus"]))
        raise fs.RunError("not now", "Later.")

    monkeypatch.setattr(runs, "run", refuse)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    start = ("study", "--model", "pair/mdm", "--out", tmp_path, "--engine")
    for more in (
        ("ray",),
        ("ray,gpus=0.5", "--workers", "8"),
        ("ray", "--device", "cpu", "--workers", "2"),
    ):
        assert ended(*start, *more).returncode == 6
    assert asked == [(4, None), (8, 0.5), (2, 0)]
    assert [_default_workers(device) for device in ("cuda", None, "cuda:1")] == [4, 4, 1]


def test_how_long_a_run_waits_is_a_flag_and_a_lost_worker_is_told_of(ended, tmp_path, monkeypatch):
    from floatscope.studies import run as runs

    def lose(request, directory, *, patience, shard_limit, on_event, **options):
        assert (patience, shard_limit) == (90.0, 600.0)
        on_event({"event": "stored", "shard": "a"})
        on_event({"event": "lost", "shard": "b", "why": "its worker hung [for 90 s]", "times": 1})
        raise fs.RunError("not now", "Later.")

    monkeypatch.setattr(runs, "run", lose)
    flags = ("--engine", "local,patience=90,shard_limit=600", "--device", "cpu", "--out", tmp_path)
    done = ended("study", "--model", "pair/mdm", *flags)
    assert done.returncode == 6
    assert "shard b was lost: its worker hung [for 90 s]\n" in done.stderr
    assert "stored" not in done.stderr
    monkeypatch.undo()
    for key in ("patience", "shard_limit"):
        done = ended(
            "study", "--model", "pair/mdm", "--engine", f"local,{key}=0", "--out", tmp_path
        )
        assert done.returncode == 2 and "Give a positive number of seconds" in done.stderr


def test_the_command_on_a_page_asks_for_the_same_run(ended, monkeypatch):
    from floatscope.cli import study
    from floatscope.report.content import command

    fields = {
        "studies": ["knowledge", "decoding", "ablation"], "models": ["pair/mdm", "pair/arm"],
        "data": "world:one", "limit": 7, "questions": 9, "gain_questions": 8, "side_questions": 5,
        "asked_as": "passages=5", "traced_as": "passages=3", "length": 6, "steps": 3, "sampler": "entropy",
        "frequencies": "pair", "heads": 4, "template": "plain", "chat": False, "controls": 2, "view": 1,
        "keep_traces": True, "shard": 3, "batch_size": 4, "batch": 2, "seed": 5, "skip": 1, "device": "cpu",
        "dtype": "float32", "threads": 2, "skip_bad": True, "split_alternatives": True,
        "chosen_on": "the first texts",
    }  # fmt: skip
    request, asked = request_of(fields), []
    assert set(fields) == set(type(request).model_fields) - {"extra_runs", "plugins"}
    assert all(
        getattr(request, name) != field.default
        for name, field in type(request).model_fields.items()
        if name in fields
    )
    monkeypatch.setattr(study, "_run", lambda request, *_, **__: asked.append(request))
    done = ended(*shlex.split(command(request))[1:])
    assert done.returncode == 0, done.stderr
    assert asked == [request]

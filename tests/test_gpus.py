"""Which local worker sees which GPU. GPUs are names here: what is tested is who is given which."""

import pytest

from floatscope.engine import Plan, Run, Shard, execute
from floatscope.engine.hardware import gpu_names, least_used
from floatscope.studies import request_of
from floatscope.studies import run as runs


def test_a_machine_with_eight_gpus_gives_each_of_eight_workers_one(tmp_path, monkeypatch):
    """All eight are alive at once: `placed` waits for so many."""
    monkeypatch.setenv("TOY_COUNTS", str(tmp_path / "counts"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    shards = tuple(Shard(f"s{i}", {}) for i in range(10))
    plan = Plan({"workers": 8}, "toy_worker:placed", shards)
    execute(plan, tmp_path / "run", workers=8, devices=8)
    said = [Run(tmp_path / "run").read(shard.id).meta for shard in shards]
    by_worker = {one["pid"]: one["gpus"] for one in said}
    assert sorted(by_worker.values()) == list("01234567")
    assert all(by_worker[one["pid"]] == one["gpus"] for one in said)


def test_a_worker_that_died_leaves_its_gpu_to_the_one_that_replaces_it(tmp_path, monkeypatch):
    """The scheduler's names are passed on: of eight GPUs this process was given two."""
    monkeypatch.setenv("TOY_COUNTS", str(tmp_path / "counts"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5a, GPU-c1")
    shards = tuple(Shard(f"s{i}", {"number": i}) for i in range(2))
    plan = Plan({}, "toy_worker:placed_after_a_death", shards)
    execute(plan, tmp_path / "run", workers=2, devices=2)
    run = Run(tmp_path / "run")
    assert [run.read(shard).meta["gpus"] for shard in ("s0", "s1")] == ["GPU-5a", "GPU-c1"]
    assert [lost["shard"] for lost in run.manifest()["history"]["lost"]] == ["s0"]


def test_more_workers_than_gpus_are_spread_evenly(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    taken = []
    for _ in range(5):
        taken.append(least_used(gpu_names(2), taken))
    assert taken == ["0", "1", "0", "1", "0"]
    assert least_used(gpu_names(0), [None]) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,7,-1,2")  # CUDA counts those before the -1
    assert gpu_names(2) == ("3", "7")


@pytest.mark.parametrize(
    ("device", "workers", "engine", "given"),
    [
        (None, 8, "local", 8),
        ("cuda", 8, "local", 8),
        ("cuda:3", 8, "local", 0),  # all on the one that is named
        ("cpu", 8, "local", 0),
        ("cuda", 1, "local", None),  # this process itself, which has seen its GPUs already
        ("cuda", 8, "ray", None),  # Ray's to give
    ],
)
def test_a_study_knows_how_many_gpus_to_share_out(
    tmp_path, monkeypatch, device, workers, engine, given
):
    asked = []

    def execute(plan, out, **options):
        asked.append(options.get("devices"))
        raise InterruptedError

    monkeypatch.setattr(runs, "execute", execute)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    fields = {"studies": ["flow"], "models": ["pair/mdm"], "device": device}
    with pytest.raises(InterruptedError):
        runs.run(request_of(fields), tmp_path / "run", workers=workers, engine=engine)
    assert asked == [given]

"""Fixtures for all tests.

Nothing heavy is imported at the top: of xdist's processes one only hands out the tests. What fixtures need is
in `tiny_models`, `shallow_pair` and `browsing`.
"""

import gc
import os
import signal
import sys
import threading
from types import SimpleNamespace

import pytest
import shape_checks

# Libraries read these when they are first imported, here and in every process that a test starts.
os.environ.update(
    TRITON_INTERPRET="1",  # GPU kernels run on the CPU
    RAY_worker_niceness="0",  # at Ray's own 15 a busy machine hardly lets a worker work
    OMP_NUM_THREADS="1",  # the processes of a run share the cores
    TOKENIZERS_PARALLELISM="false",
)
shape_checks.install()

# What is imported stays. Without this, a fifth of the suite's time goes into looking through all of it for
# garbage, again and again.
gc.disable()

# A suite that was started in the background ignores Ctrl-C, and so would the programs whose Ctrl-C it tests.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Every file has one tier, which is the marker of its tests: `attack` in the folder of that name, these, and
# `unit` for all others. `make unit` runs those: a tier of 90 s, so what takes longer than it tells goes here.
TIERS = {
    "slow": """adapters answers cached_replay causal_studies causal_tools claims command_line compiled_kernels
control documentation documented_commands engine evaluate every_measure extending families fused gallery gpus
harness interventions intervals live_runs long_studies long_traces measuring model_spec movement needs
newcomer notebooks pair planted_verdicts platforms provenance real_model region_flow registration
streamed_traces studies tokens_at_steps training twin twin_training""".split(),
    "browser": "judged_answers live_page live_server report_page step_numbers viewer".split(),
}


def tier(path):
    """Return the tier of a file of tests."""
    if path.parent.name == "attacks":
        return "attack"
    name = path.stem.removeprefix("test_")
    return next((tier for tier, names in TIERS.items() if name in names), "unit")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items):
    """Put slow files first, so that no process is left alone with one at the end."""
    order = [*TIERS, "attack", "unit"]
    for item in items:
        item.add_marker(tier(item.path))
    items.sort(key=lambda item: order.index(tier(item.path)))


def pytest_collection_finish():
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """A tiny random checkpoint of every family, in its real format."""
    import tiny_models

    return tiny_models.written(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def models(checkpoints):
    import floatscope as fs

    return {name: fs.load(path) for name, path in checkpoints.items()}


@pytest.fixture(scope="session")
def exact(checkpoints):
    """Every family in float64: neither a batch's rounding nor a near-tie of scores changes a token."""
    import floatscope as fs

    return {name: fs.load(path, dtype="float64") for name, path in checkpoints.items()}


@pytest.fixture(scope="session")
def llada(models):
    return models["LLaDA"]


@pytest.fixture(scope="session")
def llama(models):
    return models["Llama"]


@pytest.fixture(scope="session")
def load():
    """`fs.load`, which loads a trained model of the package once, and once with its first layers alone."""
    import floatscope as fs
    from floatscope.models import pair

    right, kept = fs.load, {}

    def load(source, **options):
        chosen = {name for name, value in options.items() if value not in (None, "auto")}
        if chosen or not str(source).startswith("pair/"):
            return right(source, **options)
        place = source, pair.locate
        return kept.get(place) or kept.setdefault(place, right(source))

    return load


@pytest.fixture
def pair_kept(load, monkeypatch):
    """The same for commands and studies, which run in this process."""
    from floatscope import instrument
    from floatscope.studies import kept_models

    for module in (instrument, kept_models):
        monkeypatch.setattr(module, "load", load)


@pytest.fixture(scope="session")
def cut_pair(tmp_path_factory):
    import shallow_pair

    return shallow_pair.written(tmp_path_factory.mktemp("shallow"))


@pytest.fixture
def shallow_pair(cut_pair, monkeypatch):
    """What is called pair/mdm and pair/arm has two layers, for what loads it in this process."""
    from floatscope.models import pair

    monkeypatch.setattr(pair, "locate", cut_pair.__getitem__)


@pytest.fixture
def ended(monkeypatch, capsys):
    """The command line in this process, which need not import torch again; however it ends."""
    from floatscope import cli

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["floatscope", *map(str, args)])
        with pytest.raises(SystemExit) as ending:
            cli.main()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what ends does not listen again
        printed = capsys.readouterr()
        return SimpleNamespace(
            returncode=ending.value.code or 0, stdout=printed.out, stderr=printed.err
        )

    return call


@pytest.fixture
def command_line(ended):
    """The same, where it must end well."""

    def call(*args):
        done = ended(*args)
        assert done.returncode == 0, done.stderr
        return done

    return call


@pytest.fixture(scope="module")
def browser():
    from browsing import opened

    with opened() as chromium:
        yield chromium

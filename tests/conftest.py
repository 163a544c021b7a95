"""Shapes in annotations are checked here, and only here: the hook must come before the import."""

import os

from jaxtyping import install_import_hook

# GPU kernels run on the CPU here; Triton reads this when it is first imported, by whomever.
os.environ["TRITON_INTERPRET"] = "1"
install_import_hook("floatscope", "typechecker.check")

import signal  # noqa: E402
import threading  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402

import floatscope as fs  # noqa: E402
from floatscope import tiny  # noqa: E402

torch.set_num_threads(1)  # two test workers share two cores
# A suite that was started in the background ignores Ctrl-C, and so would the programs whose Ctrl-C it tests.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

FAMILIES = ("LLaDA", "Dream", "Llama", "Qwen2", "Qwen3")
DIFFUSION = ("LLaDA", "Dream")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """A tiny random checkpoint of every family, in its real format."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return {name: tiny.write(name, folder / name) for name in FAMILIES}


@pytest.fixture(scope="session")
def models(checkpoints):
    return {name: fs.load(path) for name, path in checkpoints.items()}


@pytest.fixture(scope="session")
def llada(models):
    return models["LLaDA"]


@pytest.fixture(scope="session")
def llama(models):
    return models["Llama"]


def sampler_for(model, length=8, steps=4):
    """What fits the model."""
    if model.is_diffusion:
        return fs.Confidence(length=length, steps=steps)
    return fs.Autoregressive(length=length, stop_at_eos=False)

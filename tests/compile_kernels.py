"""Compile the GPU kernels without a GPU, by the calls that launch them.

Triton's interpreter, which runs the kernels in the other tests, accepts code that the compiler refuses, and
cannot run kernels written in Gluon. The registers and stack of each kernel are stored with a digest of the
sources. test_compiled_kernels.py runs this script where the compiler's version is another.

    python tests/compile_kernels.py            # print registers and stacks
    python tests/compile_kernels.py --store    # after a change to a kernel, or to what launches it
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from floatscope.attention import Labels, View
from floatscope.attention.gpu import few, fused, overlapped, vectors
from floatscope.attention.gpu import strongest as peaks
from floatscope.models import Direction, Visibility

HERE = Path(__file__).parent
STORE = HERE / "data" / "compiled_kernels.json"
TOOLS = Path(triton.backends.nvidia.__file__).parent / "bin"


def digest():
    """Hash the kernels, what launches them, and this script."""
    files = sorted((HERE.parent / "src/floatscope/attention/gpu").glob("*.py"))
    contents = [file.read_bytes() for file in (*files, Path(__file__))]
    return hashlib.sha256(b"".join(contents)).hexdigest()


class AbsentDriver:
    """The driver of a GPU that only has a name."""

    def __init__(self, capability):
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        """Return another number for another GPU: compiled kernels are stored under it."""
        return self.target.arch

    def get_current_stream(self, device):
        return 0

    def get_active_torch_device(self):
        return torch.device("cpu")


def needs(cubin):
    """Return the registers of a thread and the bytes of its stack, which holds what fits no register."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [TOOLS / "cuobjdump", "--dump-resource-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    return int(found[1]), int(found[2])


def view_of(direction, dtype, *, dim=32, n=300, n_query=None, kv=2, masked=False):
    n_query = n_query or n
    block = 32 if direction is Direction.BLOCK_CAUSAL else None
    visible = Visibility(direction, block, torch.tensor([0, 20]), n_query, n)
    region = (torch.arange(n) * 6 // n).expand(2, -1).masked_fill(~visible.key_is_real, -1)
    mask = visible.mask
    if masked:
        mask = visible.matrix[:, None].expand(-1, 4, -1, -1).clone()
    return View(
        torch.zeros(2, n_query, 4, dim, dtype=dtype).transpose(1, 2),
        torch.zeros(2, n, kv, dim, dtype=dtype).transpose(1, 2),
        0.1,
        mask,
        False,
        visible,
        Labels(region[:, -n_query:].clamp(max=2), 3, region, 6),
        torch.zeros(2, 4, n_query),
        torch.zeros(2, n, 6),
    )


def launch_all(hopper):
    """Launch with heads as wide as in published models, then all other paths with narrow heads, which compile
    faster."""
    both, causal, blocks = Direction.BIDIRECTIONAL, Direction.CAUSAL, Direction.BLOCK_CAUSAL
    views = [view_of(both, torch.bfloat16, dim=128), view_of(causal, torch.bfloat16)]
    if hopper:
        views += [view_of(both, torch.float32), view_of(blocks, torch.float16, masked=True)]
    else:
        views += [view_of(blocks, torch.float32, masked=True)]
    for view in views:
        fused.sums(view)
        vectors.columns(view)
        peaks.strongest(fused.Launch(view), 200, 264, 8)
    one = view_of(causal, torch.bfloat16, n_query=1)
    fused.sums(replace(one, lse=peaks.log_sum_exp(one)))
    few.measured(one, True)
    few.measured(view_of(causal, torch.bfloat16, n_query=3), True)
    module = torch.nn.Module()
    module.o_proj = torch.nn.Linear(4 * 128, 64, bias=False)
    vectors.value_norms(module, torch.zeros(2, 2, 300, 128, dtype=torch.bfloat16))
    vectors.norms_of(torch.zeros(2, 300, 512, dtype=torch.bfloat16))
    vectors.region_totals(torch.zeros(2, 600, 6), torch.zeros(2, 4, 600, 16)[..., :6])
    if hopper:
        assert not overlapped._refused, overlapped._refused


def compiled(capability):
    hopper = capability == 90
    overlapped.takes = lambda view: hopper and view.query.dtype != torch.float32
    driver.set_active(AbsentDriver(capability))
    found = {}

    def run(self, *args, grid, warmup, **kwargs):
        kernel = RUN(self, *args, grid=grid, warmup=True, **kwargs)
        name = f"{self.fn.__module__.rpartition('.')[2]}.{self.fn.__name__}"
        assert kernel.metadata.target.arch == capability
        found.setdefault(name, []).append(needs(kernel.asm["cubin"]))
        return kernel

    JITFunction.run = run
    launch_all(hopper)
    return found


RUN = JITFunction.run

if __name__ == "__main__":
    made = {str(capability): compiled(capability) for capability in (90, 80)}
    if "--store" in sys.argv:
        stored = {"triton": triton.__version__, "sources": digest(), "needs": made}
        STORE.write_text(json.dumps(stored, indent=1) + "\n")
    print(json.dumps(made))

"""Every GPU kernel compiles, for Hopper GPUs and for older ones, without a GPU."""

import json
import os
import subprocess
import sys

import pytest

triton = pytest.importorskip("triton", reason="Triton has no build for this platform")

import compile_kernels

OWN = {"hopper.column_sums", "hopper_rows.row_sums"}
ALL = {
    *("kernels.offsets", "kernels.column_sums", "kernels.row_sums"),
    *("vector_kernels.query_totals", "vector_kernels.key_columns", "vector_kernels.value_norms"),
    *("vector_kernels.row_norms", "strongest_kernels.row_powers", "strongest_kernels.strongest"),
    *("few_kernels.few_scores", "few_kernels.one_scores", "few_kernels.few_rows"),
    "few_kernels.few_columns",
    *("kernels.head_means", "vector_kernels.region_totals"),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Registers and stacks by capability: stored ones where the compiler is the same, else compiled now."""
    stored = json.loads(compile_kernels.STORE.read_text())
    if stored["triton"] == triton.__version__:
        return stored["needs"]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("compiled"))
    environment["TRITON_DISABLE_LINE_INFO"] = "1"  # which changes no instruction, and takes a tenth
    done = subprocess.run(
        [sys.executable, compile_kernels.__file__], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_stored_digest_matches_the_kernels():
    """Compiling them all takes half a minute: it is done when one of them has changed."""
    stored = json.loads(compile_kernels.STORE.read_text())
    remedy = "the kernels have changed: run python tests/compile_kernels.py --store"
    assert stored["sources"] == compile_kernels.digest(), remedy


def test_every_kernel_compiles_for_hopper(compiled):
    found = compiled["90"]
    assert set(found) == ALL | OWN
    for name in OWN:
        assert all(stack == 0 for _, stack in found[name]), found[name]
    # Two programs share a multiprocessor's 65,536 registers: 128 threads each, and 256.
    assert all(2 * 128 * registers <= 65536 for registers, _ in found["hopper.column_sums"])
    assert all(2 * 256 * registers <= 65536 for registers, _ in found["hopper_rows.row_sums"])


def test_every_kernel_compiles_for_older_gpus(compiled):
    assert set(compiled["80"]) == ALL

"""Examples traced together: as many as fit, fewer where memory runs out, and the same numbers."""

import numpy as np
import pytest
import torch
import xarray as xr

from floatscope.errors import ModelError, UsageError
from floatscope.sequences.prompt import Encoded
from floatscope.studies import batching
from floatscope.studies.batching import Batching
from floatscope.studies.planning import plan
from floatscope.studies.request import request_of
from floatscope.trace import Trace

LENGTH = 10


def prompts(*lengths):
    return [Encoded((5,) * n, ("prompt",) * n) for n in lengths]


class Device(batching.Gpu):
    """A GPU of so many bytes; an example takes `each` a position there, and a tenth on the host."""

    def __init__(self, size, each=10, host=10**9):
        self.size, self.each, self.on_host = size, each, host
        self.peak, self.released, self.anew = (
            0,
            0,
            [],
        )  # no model: nothing of a real device is asked

    def free(self):
        return self.size

    def host(self):
        return self.on_host

    def begin(self, *, anew):
        self.peak, self.anew = 0, [*self.anew, anew]

    def peak_bytes(self):
        return self.peak

    def release(self):
        self.released += 1

    def trace(self, batch):
        places = len(batch) * (LENGTH + max(len(one.ids) for one in batch))
        self.peak = places * self.each
        if self.peak > self.size:
            raise torch.OutOfMemoryError("CUDA out of memory")
        held = np.zeros(places * self.each // 10 // len(batch), np.int8)
        return [Trace(xr.Dataset({"x": ("i", held)}, attrs={"at": id(one)})) for one in batch]


def traced(made, some, trace):
    found, at = [], []
    for start, batch in made.batches(some, LENGTH, trace):
        at.append(start)
        found += batch
    assert [one.data.attrs["at"] for one in found] == [id(prompt) for prompt in some]
    assert at == [sum(made.sizes[-len(at) :][:i]) for i in range(len(at))]
    return made.sizes


def test_the_batch_size_follows_from_the_first_example():
    gpu = Device(10_000)  # seven tenths are 700 positions, at ten bytes each
    assert traced(Batching(memory=gpu), prompts(*[90] * 9), gpu.trace) == [1, 7, 1]
    gpu = Device(10_000)  # a longer one makes all of its batch longer
    assert traced(Batching(memory=gpu), prompts(90, 90, 90, 190, 90), gpu.trace) == [1, 3, 1]
    # A quarter of it holds 600 positions of finished traces: 300 that are measured, 300 that are traced.
    gpu = Device(10**9, host=2400)
    assert traced(Batching(memory=gpu), prompts(*[90] * 7), gpu.trace) == [1, 3, 3]
    made = Batching(memory=gpu)  # what it knows, it keeps for the next shard
    traced(made, prompts(90), gpu.trace)
    assert traced(made, prompts(90, 90, 90), gpu.trace) == [1, 3]
    assert gpu.anew == [
        True,
        False,
        False,
        True,
        False,
    ]  # of two; what is known is not measured again


def test_a_batch_is_halved_when_memory_runs_out():
    gpu = Device(10_000)
    made = Batching(memory=gpu)
    traced(made, prompts(90), gpu.trace)
    gpu.each = 30  # another process, or another length: three of these fit
    assert traced(made, prompts(*[90] * 7), gpu.trace) == [1, 3, 3, 1]
    assert gpu.released == 1 and made.limit == 3
    gpu = Device(10_000, each=30)
    assert traced(Batching(8, gpu), prompts(*[90] * 7), gpu.trace) == [3, 3, 1]  # asked for, too
    gpu = Device(500)
    with pytest.raises(ModelError, match=r"one example of 90 tokens and 10.*\n?.*dtype"):
        traced(Batching(4, gpu), prompts(*[90] * 4), gpu.trace)
    assert gpu.released == 2  # four, two, one


def test_examples_are_traced_singly_without_a_gpu(llada):
    device = Device(10**9)
    assert traced(Batching(), prompts(5, 6, 7), device.trace) == [1, 1, 1]
    assert traced(Batching(2), prompts(5, 6, 7), device.trace) == [2, 1]
    made = Batching.for_model(llada, None)
    assert made.memory is None and Batching.for_model(llada, 3).fixed == 3
    assert batching.free_on_host() > 10**8


def asked(**more):
    return request_of({"studies": ("floating",), "models": ("pair/mdm",)} | more)


def test_the_batch_option_is_auto_by_default_or_a_number():
    assert plan(asked()).keys() == plan(asked(batch="auto")).keys()
    assert (asked().batch, asked(batch="3").batch, asked(batch=1).batch) == (None, 3, 1)
    for bad, why in (("some", "'auto', got 'some'"), (0, "greater"), ("-2", "'auto', got '-2'")):
        with pytest.raises(UsageError, match=f"batch: .*{why}"):
            asked(batch=bad)

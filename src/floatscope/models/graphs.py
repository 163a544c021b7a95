"""A forward recorded once as a CUDA graph, and replayed: the same kernels, without Python between them.

A graph is a list of kernels and addresses. What changes from step to step is copied into buffers that it
reads; what does not (shapes, who looks on, which intervention is in force) is part of its key. Here is
the graph itself, and the few that a network keeps; when one is recorded is decided in `decode/replay.py`.
Nothing here knows what a forward computes.
"""

import ctypes
import gc
import os
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .visibility import Visibility

T = TypeVar("T")
SWITCH = "FLOATSCOPE_GRAPHS"
_MOST = 8  # graphs kept of one network
_ROOMS = 4  # and rooms
_SHARE = 0.25  # of the memory that is free: what kept graphs may hold between decodings


_given_up: list[str] = []  # why nothing is recorded in this process any more


def allowed() -> bool:
    """Unless the environment says FLOATSCOPE_GRAPHS=0."""
    return os.environ.get(SWITCH, "1") != "0"


def trusted() -> bool:
    """No recording has failed in such a way that torch could not be put right again."""
    return not _given_up


class CannotReplay(Exception):
    """A forward that has to be launched; the text says why."""


@runtime_checkable
class Part(Protocol):
    """Someone who takes part in a forward: looks at it or changes it, on the device alone."""

    def key(self) -> Hashable:
        """All that it depends on but its inputs. May raise CannotReplay."""

    def owns(self, handler: object) -> bool:
        """This handler at the attention hook, or this hook, is its own."""

    def launching(self) -> float:
        """Seconds that Python takes for it in a layer, about."""

    def inputs(self) -> dict[str, Tensor]:
        """The tensors of the present forward that it reads."""

    def recording(
        self, inputs: dict[str, Tensor], visible: Visibility
    ) -> AbstractContextManager[Any]:
        """Around the forward that is recorded, which reads these instead; gives what it will leave."""

    def replayed(self, left: Any) -> None:
        """A forward has been replayed: what `recording` gave holds its results."""


@runtime_checkable
class Graph(Protocol):
    """A recorded computation that can be replayed on the current contents of its buffers."""

    def record(self, body: Callable[[], T]) -> T:
        """Record `body` and return its result; every `replay` overwrites these tensors."""

    def replay(self) -> None: ...


class CudaGraph:
    """`record` notes what `body` launches and runs none of it; `replay` runs it."""

    def __init__(self, pool: Any) -> None:
        self._graph, self._pool = torch.cuda.CUDAGraph(), pool

    def record(self, body: Callable[[], T]) -> T:
        scratch = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        collecting = gc.isenabled()
        gc.disable()  # what is freed by chance in the middle may be a graph or an event
        try:
            with torch.cuda.stream(stream):
                # Threads that carry results to the host go on meanwhile: only this one is watched.
                self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    result = body()
                    self._graph.capture_end()
                except BaseException:
                    _abandon(self._graph, stream, scratch)
                    raise
        finally:
            if collecting:
                gc.enable()
        current.wait_stream(stream)
        return result

    def replay(self) -> None:
        self._graph.replay()


_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_failed: list[Any] = []  # kept: torch's allocators may still ask them


def _abandon(graph: Any, stream: Any, scratch: Tensor) -> None:
    """Ends a recording that has failed; afterwards the device is as it was before, or nothing is recorded
    in this process any more.

    Where CUDA has ended it already, torch's `capture_end` stops at that error: its allocators and its
    random numbers go on as if a graph were being recorded. They are told by ending another, of one kernel,
    that is begun on the same stream behind torch's back.
    """
    _failed.append(graph)
    with suppress(RuntimeError):
        graph.capture_end()
        graph.reset()
        return
    try:
        begin = ctypes.CDLL("libcuda.so.1").cuStreamBeginCapture_v2
        code = begin(ctypes.c_void_p(stream.cuda_stream), ctypes.c_int(_THREAD_LOCAL))
        if code:
            raise RuntimeError(f"cuStreamBeginCapture gave {code}")
        scratch.zero_()
        graph.capture_end()
        graph.reset()
        torch.cuda.synchronize()
        state = torch.cuda.get_rng_state()
        scratch.normal_()  # raises where random numbers are still believed to be recorded
        torch.cuda.set_rng_state(state)
    except Exception as error:
        _given_up.append(repr(error))
        warnings.warn(
            f"nothing is recorded in this process any more: after a recording that failed, torch could "
            f"not be put right again ({error!r:.200})",
            stacklevel=2,
        )


@dataclass(eq=False)
class Recorded:
    """A graph, the buffers that it reads, and what it leaves."""

    graph: Graph
    buffers: dict[str, Tensor]
    result: Any

    def replay(self, inputs: dict[str, Tensor]) -> Any:
        """What the forward gives for these inputs, in tensors that the next replay overwrites."""
        torch._foreach_copy_(list(self.buffers.values()), [inputs[name] for name in self.buffers])
        self.graph.replay()
        return self.result


@runtime_checkable
class Room(Protocol):
    """Memory that stays where it is, which graphs read and write from one replay to the next."""

    name: object  # no other room has it: part of the key of whatever was recorded with this one

    def tensors(self) -> list[Tensor]: ...


R = TypeVar("R", bound=Room)


@dataclass(eq=False)
class Store:
    """What one network has recorded, the latest last; how often what was launched, and what failed."""

    recorded: "OrderedDict[Hashable, Recorded]" = field(default_factory=OrderedDict)
    rooms: "OrderedDict[Hashable, Any]" = field(default_factory=OrderedDict)  # that nobody is in
    taken: list[Any] = field(default_factory=list)  # that a decoding is in
    launched: Counter[Hashable] = field(default_factory=Counter)
    refused: set[Hashable] = field(default_factory=set)
    evicted: set[Hashable] = field(default_factory=set)  # that gave way to later ones
    bytes: int = 0  # of device memory that the graphs hold, about
    _signature: Hashable = None
    _pool: Any = None

    def known(self, key: Hashable) -> Recorded | None:
        found = self.recorded.get(key)
        if found is not None:
            self.recorded.move_to_end(key)
        return found

    def record(
        self, key: Hashable, inputs: dict[str, Tensor], body: Callable[[dict[str, Tensor]], Any]
    ) -> Recorded:
        """Notes what `body` does with buffers like the inputs."""
        while len(self.recorded) >= _MOST:
            self.evicted.add(self.recorded.popitem(last=False)[0])
        before = reserved()
        buffers = {name: one.clone() for name, one in inputs.items()}
        graph = new_graph(self)
        try:
            made = Recorded(graph, buffers, graph.record(lambda: body(buffers)))
        except BaseException:
            self._pool = None  # the next one takes a pool that nothing has failed in
            raise
        self.bytes += max(0, reserved() - before)
        self.recorded[key] = made
        return made

    def pool(self) -> Any:
        """The memory that all graphs of a network share: they never run at once."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    def take(self, key: Hashable, make: Callable[[], R]) -> R:
        """The room of this kind, for oneself until it is given back; what is in it is another's."""
        known: R | None = self.rooms.pop(key, None)
        room = make() if known is None else known
        self.taken.append(room)
        return room

    def give(self, key: Hashable, room: Room) -> None:
        self.taken = [one for one in self.taken if one is not room]
        self.rooms[key] = room
        while len(self.rooms) > _ROOMS:
            self.rooms.popitem(last=False)

    def forget(self) -> None:
        self.recorded.clear()
        self.rooms.clear()
        self.launched.clear()
        self.refused.clear()
        self.evicted.clear()
        self.bytes, self._pool = 0, None

    def meet(self, net: nn.Module) -> None:
        """Before a decoding: graphs of other weights than the network has now are let go."""
        signature = _signature(net)
        if signature != self._signature:
            self.forget()
            self._signature = signature

    def part(self) -> None:
        """After a decoding: what holds much of the memory is let go too."""
        rooms = sum(one.nbytes for room in self.rooms.values() for one in room.tensors())
        held = self.bytes + rooms
        if (self.recorded or self.rooms) and held > _SHARE * free_memory():
            self.forget()


_stores: "WeakKeyDictionary[nn.Module, Store]" = WeakKeyDictionary()


def store_of(net: nn.Module) -> Store:
    return _stores.setdefault(net, Store())


def new_graph(store: Store) -> Graph:
    return CudaGraph(store.pool())


def reserved() -> int:
    return torch.cuda.memory_reserved()


def free_memory() -> int:
    """Of the device, and what torch holds of it unused."""
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return torch.cuda.mem_get_info()[0] + unused


def _signature(net: nn.Module) -> Hashable:
    """Where the weights lie, and what else decides which kernels run: a graph knows addresses alone.

    Values may change in place; a replay reads the new ones.
    """
    cuda = torch.backends.cuda
    places = tuple(one.data_ptr() for group in (net.parameters(), net.buffers()) for one in group)
    switches = (
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
    )
    return places, switches

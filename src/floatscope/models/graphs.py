"""Record forwards as CUDA graphs and replay them, which runs the same kernels without running Python.

A graph is a list of kernels and addresses. Tensors that change from step to step are copied into buffers
that the graph reads. Properties that stay the same (shapes, observers, interventions) are part of the
graph's key. This module contains the graph and the store of a network's graphs; `decode/replay.py` decides
which forwards are recorded. The module does not depend on what a forward computes.
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
_MOST = 8  # largest number of graphs kept per network
_ROOMS = 4  # and rooms
_SHARE = 0.25  # largest share of the free memory that graphs may keep between decodings


_given_up: list[str] = []  # reasons why this process no longer records


def allowed() -> bool:
    """Tell whether recording is allowed: always, except if the environment has FLOATSCOPE_GRAPHS=0."""
    return os.environ.get(SWITCH, "1") != "0"


def trusted() -> bool:
    """Tell whether this process can record; False once a failed recording left torch in a broken state."""
    return not _given_up


class CannotReplay(Exception):
    """Raised if a forward cannot be replayed; the message states the reason."""


@runtime_checkable
class Part(Protocol):
    """An observer or intervention that computes only on the device and can be part of a recorded forward."""

    def key(self) -> Hashable:
        """Return a key of everything that this part depends on except its inputs. May raise CannotReplay."""

    def owns(self, handler: object) -> bool:
        """Tell whether an attention handler or module hook belongs to this part."""

    def launching(self) -> float:
        """Return the approximate seconds per layer that Python takes for this part."""

    def inputs(self) -> dict[str, Tensor]:
        """Return the tensors of the current forward that this part reads."""

    def recording(
        self, inputs: dict[str, Tensor], visible: Visibility
    ) -> AbstractContextManager[Any]:
        """Return a context manager around the recorded forward of `inputs`; it yields the part's results."""

    def replayed(self, yielded: Any) -> None:
        """Receive the results that `recording` yielded, after a replay has filled them."""


@runtime_checkable
class Graph(Protocol):
    """A recorded computation that can be replayed on the current contents of its buffers."""

    def record(self, body: Callable[[], T]) -> T:
        """Record `body` and return its result; every `replay` overwrites these tensors."""

    def replay(self) -> None: ...


class CudaGraph:
    """A CUDA graph: `record` captures the kernels that `body` launches, and `replay` runs them."""

    def __init__(self, pool: Any) -> None:
        self._graph, self._pool = torch.cuda.CUDAGraph(), pool

    def record(self, body: Callable[[], T]) -> T:
        scratch = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        collecting = gc.isenabled()
        gc.disable()  # garbage collection during the recording could free a graph or an event
        try:
            with torch.cuda.stream(stream):
                # "thread_local": threads that copy results to the host continue during the recording.
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
_failed: list[Any] = []  # kept alive, because torch's allocators may still query these graphs


def _abandon(graph: Any, stream: Any, scratch: Tensor) -> None:
    """End a failed recording and restore torch's state; if that fails, stop all recording in this process.

    If CUDA has already ended the recording, torch's `capture_end` stops at that error, and its allocators
    and random numbers behave as if a recording were still running. In that case a recording of one kernel
    is started directly with CUDA on the same stream, and is ended with torch to reset this state.
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
        scratch.normal_()  # raises if torch still treats random numbers as recorded
        torch.cuda.set_rng_state(state)
    except Exception as error:
        _given_up.append(repr(error))
        warnings.warn(
            "this process records no more forwards: the state of torch could not be restored "
            f"after a failed recording ({error!r:.200})",
            stacklevel=2,
        )


@dataclass(eq=False)
class Recorded:
    """A recorded graph, the buffers that the graph reads, and the results that it writes."""

    graph: Graph
    buffers: dict[str, Tensor]
    result: Any

    def replay(self, inputs: dict[str, Tensor]) -> Any:
        """Replay the forward on these inputs; the next replay overwrites the returned tensors."""
        torch._foreach_copy_(list(self.buffers.values()), [inputs[name] for name in self.buffers])
        self.graph.replay()
        return self.result


@runtime_checkable
class Room(Protocol):
    """Memory with fixed addresses that graphs read and write in successive replays."""

    name: object  # unique; part of the key of every recording that uses this room

    def tensors(self) -> list[Tensor]: ...


R = TypeVar("R", bound=Room)


@dataclass(eq=False)
class Store:
    """The graphs of one network, least recently used first, and counts of launched forwards by key."""

    recorded: "OrderedDict[Hashable, Recorded]" = field(default_factory=OrderedDict)
    rooms: "OrderedDict[Hashable, Any]" = field(default_factory=OrderedDict)  # not in use
    in_use: list[Any] = field(default_factory=list)  # of running decodings
    launched: Counter[Hashable] = field(default_factory=Counter)
    refused: set[Hashable] = field(default_factory=set)
    # keys whose graphs were replaced by later ones
    evicted: set[Hashable] = field(default_factory=set)
    bytes: int = 0  # device memory of the graphs, approximately
    _signature: Hashable = None
    _pool: Any = None

    def recorded_graph(self, key: Hashable) -> Recorded | None:
        """Return the graph recorded for a key, or None."""
        graph = self.recorded.get(key)
        if graph is not None:
            self.recorded.move_to_end(key)
        return graph

    def record(
        self, key: Hashable, inputs: dict[str, Tensor], body: Callable[[dict[str, Tensor]], Any]
    ) -> Recorded:
        """Record `body` on copies of the inputs, and store and return the graph; evict old graphs first."""
        while len(self.recorded) >= _MOST:
            self.evicted.add(self.recorded.popitem(last=False)[0])
        before = reserved()
        buffers = {name: tensor.clone() for name, tensor in inputs.items()}
        graph = new_graph(self)
        try:
            recorded = Recorded(graph, buffers, graph.record(lambda: body(buffers)))
        except BaseException:
            self._pool = None  # the next recording uses a new pool, in which nothing has failed
            raise
        self.bytes += max(0, reserved() - before)
        self.recorded[key] = recorded
        return recorded

    def pool(self) -> Any:
        """Return the memory pool that all graphs of the network share; they never run at the same time."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    def take(self, key: Hashable, make: Callable[[], R]) -> R:
        """Return a room for exclusive use: an idle room of this key, with its old values, or a new room."""
        idle: R | None = self.rooms.pop(key, None)
        room = make() if idle is None else idle
        self.in_use.append(room)
        return room

    def give(self, key: Hashable, room: Room) -> None:
        """Give a room back to the store, which then holds at most 4 idle rooms."""
        self.in_use = [used for used in self.in_use if used is not room]
        self.rooms[key] = room
        while len(self.rooms) > _ROOMS:
            self.rooms.popitem(last=False)

    def forget(self) -> None:
        """Release all graphs and rooms."""
        self.recorded.clear()
        self.rooms.clear()
        self.launched.clear()
        self.refused.clear()
        self.evicted.clear()
        self.bytes, self._pool = 0, None

    def release_outdated(self, net: nn.Module) -> None:
        """Release all graphs if weights were replaced since the recording. Called before a decoding."""
        signature = _signature(net)
        if signature != self._signature:
            self.forget()
            self._signature = signature

    def release_if_large(self) -> None:
        """Release all graphs if they use a large share of the memory. Called after a decoding."""
        rooms = sum(tensor.nbytes for room in self.rooms.values() for tensor in room.tensors())
        nbytes = self.bytes + rooms
        if (self.recorded or self.rooms) and nbytes > _SHARE * free_memory():
            self.forget()


_stores: "WeakKeyDictionary[nn.Module, Store]" = WeakKeyDictionary()


def store_of(net: nn.Module) -> Store:
    """Return the store of a network; a new store on the first call."""
    return _stores.setdefault(net, Store())


def new_graph(store: Store) -> Graph:
    return CudaGraph(store.pool())


def reserved() -> int:
    """Return the number of bytes that torch has reserved on the current GPU."""
    return torch.cuda.memory_reserved()


def free_memory() -> int:
    """Return the number of free bytes on the current GPU, plus those that torch reserved and does not use."""
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return torch.cuda.mem_get_info()[0] + unused


def _signature(net: nn.Module) -> Hashable:
    """Return the addresses of the network's weights, and the torch settings that select kernels.

    Weights may change in place; a replay reads the new values.
    """
    cuda = torch.backends.cuda
    places = tuple(
        tensor.data_ptr() for group in (net.parameters(), net.buffers()) for tensor in group
    )
    switches = (
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
    )
    return places, switches

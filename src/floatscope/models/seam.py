"""The one seam with transformers: where our code runs inside a network's forward.

A registered attention function sees every layer's q, k and v after RoPE, norms and cache. It hands
them to the handlers attached to that network, outermost first, and at the end to transformers' own
SDPA function: with no handler attached a network computes exactly what it computes without us.
A handler may change the call (an intervention) or look at it (a capture). This file neither
measures nor edits anything.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "floatscope"


@dataclass(frozen=True, eq=False)
class Fill:
    """In place of the values of some keys every row gets another one; the weights stay."""

    keys: Bool[Tensor, "b #h k"]
    value: Float[Tensor, "b h _ d"] | None = None  # for each row, or one for all; None: nothing


@dataclass
class Call:
    """One layer's attention, about to be computed."""

    layer: int
    module: nn.Module
    query: Float[Tensor, "b h q d"]
    key: Float[Tensor, "b kv k d"]
    value: Float[Tensor, "b kv k d"]
    # True = may look; None = all, or causal. A watched loop's own may be numbers that are added to scores.
    mask: Bool[Tensor, "#b #h q k"] | Float[Tensor, "#b #h q k"] | None
    causal: bool
    scale: float
    bias: Float[Tensor, "b h 1 k"] | None = None  # added to the scaled scores of a key
    fills: tuple[Fill, ...] = ()  # where two name one key, the first counts
    extra: dict[str, Any] = field(default_factory=dict)
    attention: Callable[..., Any] | None = None  # in place of transformers' own SDPA function


Proceed = Callable[[Call], Float[Tensor, "b q h d"]]
Handler = Callable[[Call, Proceed], Float[Tensor, "b q h d"]]

# Keyed by the attention module, so that two networks traced in one process never meet.
_handlers: dict[nn.Module, list[Handler]] = {}
_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_locks_lock = threading.Lock()


@contextmanager
def alone(net: nn.Module) -> Iterator[None]:
    """This thread has the network to itself; others wait. The same thread may enter again.

    Handlers, the attention that is set and the training flags belong to the network, not to a
    thread: without this, one thread's capture sees another's forward.
    """
    with _locks_lock:
        lock = _locks.setdefault(net, threading.RLock())
    with lock:
        yield


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Without dropout; afterwards every module is in the mode in which it was."""
    training = [module for module in net.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def allowed(call: Call) -> Bool[Tensor, "#b #h q k"]:
    """Who may look at whom, as a matrix."""
    if call.mask is not None:
        return call.mask
    q, k = call.query.shape[2], call.key.shape[2]
    full = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=call.query.device).expand(1, 1, q, k)
    return full.tril(k - q) if call.causal else full


def stock(call: Call) -> Float[Tensor, "b q h d"]:
    """Attention as transformers computes it."""
    if call.fills:
        return _filled(call)
    biased = call.bias is not None
    output, _ = (call.attention or sdpa_attention_forward)(
        call.module,
        call.query,
        call.key,
        call.value,
        _biased(call) if biased else call.mask,
        scaling=call.scale,
        is_causal=call.causal and not biased,
        **call.extra,
    )
    return output


def each_head(grouped: Float[Tensor, "b kv k d"], heads: int) -> Float[Tensor, "b h k d"]:
    """Keys or values of grouped heads, once for every head."""
    return grouped.repeat_interleave(heads // grouped.shape[1], dim=1)


_UNGROUPED = nn.Identity()  # a module whose heads have keys and values of their own


def ungrouped(call: Call) -> Call:
    """The same call with keys and values for every head of their own, and without fills."""
    heads = call.query.shape[1]
    key, value = each_head(call.key, heads), each_head(call.value, heads)
    return replace(call, module=_UNGROUPED, key=key, value=value, fills=())


def _filled(call: Call) -> Float[Tensor, "b q h d"]:
    """The same weights over values that are partly gone; then each fill, as much of it as was attended."""
    plain = ungrouped(call)
    value = plain.value
    left, more = torch.ones_like(value[..., :1], dtype=torch.bool), []
    for fill in call.fills:
        here = fill.keys[..., None] & left  # (b, h, k, 1)
        left = left & ~here
        if fill.value is not None:
            share = stock(replace(plain, value=here.to(value.dtype).expand_as(value).contiguous()))
            more.append(share * fill.value.transpose(1, 2))
    return stock(replace(plain, value=value.masked_fill(~left, 0))) + sum(more)


def _biased(call: Call) -> Float[Tensor, "b h q k"]:
    """Mask and bias as SDPA takes them together: a number for each query and key."""
    assert call.bias is not None
    bias = call.bias.to(call.query.dtype)
    if call.mask is None and not call.causal:
        return bias.expand(-1, -1, call.query.shape[2], -1)
    return bias.masked_fill(~allowed(call), -torch.inf)


def _chain(handlers: list[Handler]) -> Proceed:
    if not handlers:
        return stock
    first, rest = handlers[0], _chain(handlers[1:])
    return lambda call: first(call, rest)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    call = Call(
        layer=int(module.layer_idx),  # type: ignore[arg-type]
        module=module,
        # A family that rotates in float32 hands over wider q and k than v.
        query=query.to(value.dtype),
        key=key.to(value.dtype),
        value=value,
        mask=attention_mask,
        causal=causal and attention_mask is None and query.shape[2] > 1,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        extra={"dropout": dropout, **extra},
    )
    return _chain(_handlers.get(module, []))(call), None


def _mask(**asked: Any) -> Tensor | None:
    """transformers' own mask; none where it would hide nothing that SDPA does not know of.

    While a CUDA graph is recorded transformers makes that mask all the same, and SDPA, given one, takes
    its slowest way and says nothing.
    """
    hides_by_window = asked.get("local_size") is not None
    if asked.get("attention_mask") is None and not hides_by_window:
        queries, keys = asked["q_length"], asked["kv_length"]
        one_way = asked.get("allow_is_causal_skip", True) and (queries == 1 or queries == keys)
        if one_way or asked.get("allow_is_bidirectional_skip", False):
            return None
    mask: Tensor | None = sdpa_mask(**asked)
    return mask


AttentionInterface.register(NAME, _attention)
# Without this second registration transformers would drop every mask, padding included, silently.
AttentionMaskInterface.register(NAME, _mask)


def attention_modules(net: PreTrainedModel) -> list[nn.Module]:
    """The attention module of every layer, in order."""
    modules = [m for m in net.modules() if hasattr(m, "layer_idx") and hasattr(m, "o_proj")]
    return sorted(modules, key=lambda m: int(m.layer_idx))


def handlers(modules: list[nn.Module]) -> list[Handler]:
    """Those attached to any of these attention modules."""
    found: list[Handler] = []
    for module in modules:
        found += [one for one in _handlers.get(module, []) if one not in found]
    return found


@contextmanager
def engaged(net: PreTrainedModel) -> Iterator[None]:
    """The network computes attention through the seam; afterwards as it did before."""
    before = net.config._attn_implementation
    if before != NAME:
        net.set_attn_implementation(NAME)
    try:
        yield
    finally:
        if before != NAME:
            net.set_attn_implementation(before)


@contextmanager
def attached(net: PreTrainedModel, handler: Handler, *, innermost: bool = False) -> Iterator[None]:
    """`handler` is called at every attention of `net`; an innermost one sees what the others changed."""
    modules = attention_modules(net)
    with engaged(net):
        for module in modules:
            chain = _handlers.setdefault(module, [])
            chain.append(handler) if innermost else chain.insert(0, handler)
        try:
            yield
        finally:
            for module in modules:
                _handlers[module].remove(handler)
                if not _handlers[module]:
                    del _handlers[module]


@contextmanager
def detached(net: PreTrainedModel) -> Iterator[None]:
    """No handler is called; those that were attached are back afterwards."""
    before = {
        module: _handlers.pop(module) for module in attention_modules(net) if module in _handlers
    }
    try:
        yield
    finally:
        _handlers.update(before)


def fp32_rope(net: PreTrainedModel) -> None:
    """Rotate q and k in float32 whatever the dtype; the seam casts them back afterwards."""
    rotary = net.model.rotary_emb
    original = rotary.forward

    def forward(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = original(x.float(), position_ids)
        return cos, sin

    rotary.forward = torch.no_grad()(forward)

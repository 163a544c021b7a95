"""The attention hook: the only place where Floatscope's code runs inside a network's forward.

Floatscope registers an attention function with transformers. The function receives every layer's q, k and
v after RoPE, norms and cache. It passes them to the handlers attached to the network, outermost handler
first, and then to transformers' own SDPA function. Without handlers, a network computes exactly what it
computes without Floatscope. A handler may change the call (an intervention) or read it (a capture). This
module itself neither measures nor changes attention.
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
    """A replacement of the values of some keys for every row. Attention weights do not change.

    Args:
        keys: The keys whose values are replaced.
        value: The replacement: one for each row, or one for all rows. None removes the values.
    """

    keys: Bool[Tensor, "b #h k"]
    value: Float[Tensor, "b h _ d"] | None = None


@dataclass
class Call:
    """A call of one layer's attention, before it is computed.

    Args:
        layer: The layer's index, from 0.
        module: The layer's attention module.
        query: q after RoPE and norms.
        key: k after RoPE, norms and cache; its heads may be fewer than the query's (grouped heads).
        value: v, with the heads of `key`.
        mask: True where a query attends to a key; None if every query attends to every key or, with
            `causal`, to every key up to its own position. The mask of a watched generation loop may also
            be float; such a mask is added to the scores.
        causal: Whether a query sees only keys up to its own position, where `mask` is None.
        scale: The factor of q·k.
        bias: Added to the scaled scores of each key.
        fills: Value replacements; if two contain the same key, the first is used.
        extra: Further keyword arguments for the attention function.
        attention: An attention function to call instead of transformers' SDPA function.
    """

    layer: int
    module: nn.Module
    query: Float[Tensor, "b h q d"]
    key: Float[Tensor, "b kv k d"]
    value: Float[Tensor, "b kv k d"]
    mask: Bool[Tensor, "#b #h q k"] | Float[Tensor, "#b #h q k"] | None
    causal: bool
    scale: float
    bias: Float[Tensor, "b h 1 k"] | None = None
    fills: tuple[Fill, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    attention: Callable[..., Any] | None = None


Proceed = Callable[[Call], Float[Tensor, "b q h d"]]
Handler = Callable[[Call, Proceed], Float[Tensor, "b q h d"]]

# Keyed by the attention module, so that two networks traced in one process do not share handlers.
_handlers: dict[nn.Module, list[Handler]] = {}
_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_locks_lock = threading.Lock()


@contextmanager
def lock_network(net: nn.Module) -> Iterator[None]:
    """Give this thread exclusive use of the network; other threads wait. The lock is re-entrant.

    Handlers, the attention implementation and the training flags belong to the network, not to a thread.
    Without the lock, a capture in one thread would see the forward of another thread.
    """
    with _locks_lock:
        lock = _locks.setdefault(net, threading.RLock())
    with lock:
        yield


@contextmanager
def eval_mode(net: nn.Module) -> Iterator[None]:
    """Put a network's modules in evaluation mode (no dropout); afterwards restore their modes."""
    training = [module for module in net.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def explicit_mask(call: Call) -> Bool[Tensor, "#b #h q k"]:
    """Return the call's mask as a matrix, also if the mask is only implied by `causal`."""
    if call.mask is not None:
        return call.mask
    q, k = call.query.shape[2], call.key.shape[2]
    full = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=call.query.device).expand(1, 1, q, k)
    return full.tril(k - q) if call.causal else full


def compute_attention(call: Call) -> Float[Tensor, "b q h d"]:
    """Compute attention as transformers does, with the call's bias and fills."""
    if call.fills:
        return _attend_with_fills(call)
    biased = call.bias is not None
    output, _ = (call.attention or sdpa_attention_forward)(
        call.module,
        call.query,
        call.key,
        call.value,
        _add_bias(call) if biased else call.mask,
        scaling=call.scale,
        is_causal=call.causal and not biased,
        **call.extra,
    )
    return output


def repeat_kv(grouped: Float[Tensor, "b kv k d"], heads: int) -> Float[Tensor, "b h k d"]:
    """Repeat the keys or values of grouped heads, once per query head."""
    return grouped.repeat_interleave(heads // grouped.shape[1], dim=1)


_UNGROUPED = nn.Identity()  # stand-in for an attention module without grouped heads


def ungroup_heads(call: Call) -> Call:
    """Return the same call with separate keys and values for every head, and without fills."""
    heads = call.query.shape[1]
    key, value = repeat_kv(call.key, heads), repeat_kv(call.value, heads)
    return replace(call, module=_UNGROUPED, key=key, value=value, fills=())


def _attend_with_fills(call: Call) -> Float[Tensor, "b q h d"]:
    """Compute attention over the values not replaced, plus each fill times the attention on its keys."""
    plain = ungroup_heads(call)
    value = plain.value
    unfilled, additions = torch.ones_like(value[..., :1], dtype=torch.bool), []
    for fill in call.fills:
        filled = fill.keys[..., None] & unfilled  # (b, h, k, 1)
        unfilled = unfilled & ~filled
        if fill.value is not None:
            share = compute_attention(
                replace(plain, value=filled.to(value.dtype).expand_as(value).contiguous())
            )
            additions.append(share * fill.value.transpose(1, 2))
    return compute_attention(replace(plain, value=value.masked_fill(~unfilled, 0))) + sum(additions)


def _add_bias(call: Call) -> Float[Tensor, "b h q k"]:
    """Combine mask and bias into one float mask, the form that SDPA accepts."""
    assert call.bias is not None
    bias = call.bias.to(call.query.dtype)
    if call.mask is None and not call.causal:
        return bias.expand(-1, -1, call.query.shape[2], -1)
    return bias.masked_fill(~explicit_mask(call), -torch.inf)


def _chain_handlers(handlers: list[Handler]) -> Proceed:
    if not handlers:
        return compute_attention
    outermost, inner = handlers[0], _chain_handlers(handlers[1:])
    return lambda call: outermost(call, inner)


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
        # In a family that rotates in float32, q and k arrive in a wider dtype than v.
        query=query.to(value.dtype),
        key=key.to(value.dtype),
        value=value,
        mask=attention_mask,
        causal=causal and attention_mask is None and query.shape[2] > 1,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        extra={"dropout": dropout, **extra},
    )
    return _chain_handlers(_handlers.get(module, []))(call), None


def _mask(**options: Any) -> Tensor | None:
    """Return the mask that transformers makes, or None if SDPA can compute the attention without a mask.

    While a CUDA graph is recorded, transformers would create such a mask anyway, and SDPA would then
    silently choose its slowest kernel.
    """
    has_window = options.get("local_size") is not None
    if options.get("attention_mask") is None and not has_window:
        queries, keys = options["q_length"], options["kv_length"]
        causal = options.get("allow_is_causal_skip", True) and (queries == 1 or queries == keys)
        if causal or options.get("allow_is_bidirectional_skip", False):
            return None
    mask: Tensor | None = sdpa_mask(**options)
    return mask


AttentionInterface.register(NAME, _attention)
# Without this registration transformers would silently drop every mask, padding included.
AttentionMaskInterface.register(NAME, _mask)


def attention_modules(net: PreTrainedModel) -> list[nn.Module]:
    """Return the attention module of every layer, in order."""
    modules = [m for m in net.modules() if hasattr(m, "layer_idx") and hasattr(m, "o_proj")]
    return sorted(modules, key=lambda m: int(m.layer_idx))


def attached_handlers(modules: list[nn.Module]) -> list[Handler]:
    """Return the handlers that are attached to any of these attention modules."""
    handlers: list[Handler] = []
    for module in modules:
        handlers += [handler for handler in _handlers.get(module, []) if handler not in handlers]
    return handlers


@contextmanager
def enable(net: PreTrainedModel) -> Iterator[None]:
    """Route the network's attention through the hook; afterwards restore its attention implementation."""
    before = net.config._attn_implementation
    if before != NAME:
        net.set_attn_implementation(NAME)
    try:
        yield
    finally:
        if before != NAME:
            net.set_attn_implementation(before)


@contextmanager
def attach(net: PreTrainedModel, handler: Handler, *, innermost: bool = False) -> Iterator[None]:
    """Call `handler` at every attention of `net`; an innermost handler sees the other handlers' changes."""
    modules = attention_modules(net)
    with enable(net):
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
def suspend(net: PreTrainedModel) -> Iterator[None]:
    """Detach all handlers from the network; afterwards attach them again."""
    before = {
        module: _handlers.pop(module) for module in attention_modules(net) if module in _handlers
    }
    try:
        yield
    finally:
        _handlers.update(before)


def rotate_in_fp32(net: PreTrainedModel) -> None:
    """Make the network rotate q and k in float32, whatever its dtype; the hook casts them back."""
    rotary = net.model.rotary_emb
    original = rotary.forward

    def forward(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = original(x.float(), position_ids)
        return cos, sin

    rotary.forward = torch.no_grad()(forward)

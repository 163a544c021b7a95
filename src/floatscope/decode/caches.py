"""Choose the cache of a decoding, and check that model, sampler and interventions allow it."""

from ..errors import UsageError
from ..models import Model
from .samplers.autoregressive import Autoregressive
from .samplers.base import Sampler
from .stale_cache import EVERY

AUTO, EXACT = "auto", "exact"
APPROXIMATE = ("prefix", "dual", "dkv")
CACHES = (AUTO, EXACT, *APPROXIMATE)


def settled_cache(model: Model, sampler: Sampler | Autoregressive, cache: str | None) -> str | None:
    """Return the cache to use, or None to forward the whole canvas at every step.

    A causal model always uses its exact cache. Raises UsageError if the model, the sampler or an
    intervention in force does not allow the requested cache.
    """
    kind, colon, period = (cache or "").partition(":")
    number = kind == "dkv" and period.isdecimal() and int(period) > 0
    if cache is not None and (kind not in CACHES or (colon and not number)):
        raise UsageError(
            f"cache = {cache!r}",
            f"Use None, {', '.join(map(repr, CACHES))}; 'dkv:8' refreshes every 8 steps, not {EVERY}.",
        )
    in_blocks, causal = model.block is not None, isinstance(sampler, Autoregressive)
    if kind in APPROXIMATE and (in_blocks or causal):
        raise UsageError(
            f"cache = {cache!r}: {model.name} is {model.direction}, so it has an exact cache",
            "Approximate caches are for bidirectional models: use cache='exact'.",
        )
    if cache == EXACT and not in_blocks and not causal:
        raise UsageError(
            f"cache = 'exact': {model.name} is {model.direction}, where every token changes every key",
            f"Use cache=None, or an approximate cache: {', '.join(map(repr, APPROXIMATE))}.",
        )
    if isinstance(sampler, Autoregressive):
        return EXACT
    if cache == AUTO:
        return EXACT if in_blocks and not sampler.cfg and not model.edits else None
    if cache is not None and sampler.cfg:
        raise UsageError(
            f"cache = {cache!r} with cfg = {sampler.cfg}: the second forward of guidance has no cache",
            "Use cache=None, or no guidance (cfg=0).",
        )
    for edit in model.edits:
        if kind in APPROXIMATE or (cache is not None and not edit.cacheable):
            raise UsageError(
                f"cache = {cache!r}: {edit.described or type(edit).__name__} needs every row at every step",
                "Use cache=None while the intervention is in force.",
            )
    return cache

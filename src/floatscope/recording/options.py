"""Options of `trace` and `read`, checked before a forward runs."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypedDict

from ..errors import UsageError, did_you_mean
from ..models.select import Choice
from ..statistics import STATISTICS

COARSE, REGIONS = "coarse", "regions"
# statistics that distinguish query groups
BY_GROUP = frozenset(("groups", "head_mean", "entropy_mean"))

# Arrays that users request but that are too large for a trace.
_RESIDUALS = "Write it to disk: model.activations(prompts, sampler, out=DIR, layers=…)."
_PATTERN = "A trace holds sums; whole rows are model.pattern(trace, step=…, layer=…, head=…)."
_ELSEWHERE = dict.fromkeys(("residual", "residuals", "activations", "hidden_states"), _RESIDUALS)
_ELSEWHERE |= dict.fromkeys(("pattern", "attention", "attentions"), _PATTERN)


class TraceKeywords(TypedDict, total=False):
    """The fields of TraceOptions as keyword arguments, which are documented in `Model.trace`."""

    keep: Collection[str] | None
    layers: Choice
    heads: Choice
    steps: Choice
    groups: str
    top: int
    dtype: str


@dataclass(frozen=True)
class TraceOptions:
    """Which statistics of which layers, heads and steps to record, and how to store them."""

    keep: Collection[str] | None = None
    layers: Choice = None
    heads: Choice = None
    steps: Choice = None
    groups: str = COARSE
    top: int = 8
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "float16"):
            raise UsageError(
                f"a trace cannot be stored as {self.dtype!r}", "Use float32 or float16."
            )
        if self.groups not in (COARSE, REGIONS):
            remedy = "Use 'coarse' (prompt, masked, revealed) or 'regions' (one group per region)."
            raise UsageError(f"groups = {self.groups!r}", remedy)
        if self.top < 1:
            raise UsageError(f"top = {self.top}", "Keep at least one key per row.")
        unknown = sorted(self.kept_statistics - set(STATISTICS))
        if unknown or not self.kept_statistics:
            name = str(unknown[0]) if unknown else ""
            choices = f"{did_you_mean(name, STATISTICS)} choose from: {', '.join(STATISTICS)}."
            problem = f"no statistic {name!r}" if unknown else "keep is empty"
            raise UsageError(problem, _ELSEWHERE.get(name, choices.lstrip()))

    @property
    def kept_statistics(self) -> frozenset[str]:
        """The statistics to keep; by default all except those kept only on request."""
        keep = STATISTICS.default if self.keep is None else self.keep
        return frozenset([keep] if isinstance(keep, str) else keep)

    @property
    def by_region(self) -> bool:
        """Whether every region is a separate query group, for a kept statistic that distinguishes groups."""
        return self.groups == REGIONS and not BY_GROUP.isdisjoint(self.kept_statistics)

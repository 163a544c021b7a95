"""Compute column sums of the attention, choose keys by them, and hide keys from a call.

`controls` chooses the keys of controls. A choice of keys is a boolean tensor of shape (b, h or 1, k); True
hides the key from every query of that head. A row that would lose all its keys is not changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Labels, View, backend
from ..models import Visibility, attention_hook

RANKS = ("lift", "mass", "received")

# All layers of a forward share its labels and the data that the kernels derive from them.
_labels: "WeakKeyDictionary[Visibility, Labels]" = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class ColumnSums:
    """Column sums of attention, and the numbers to divide them by for a mean or a lift.

    The column sum of a key is the attention that the key has received from the rows so far.
    """

    total: Float[Tensor, "b h k"]
    viewers: Float[Tensor, "b 1 k"]  # number of rows that see the key
    even: Float[Tensor, "b 1 k"]  # the sums if every row spread its attention evenly

    def widened(self, n_key: int) -> "ColumnSums":
        """Return the sums for `n_key` keys: keys that no row has seen yet are appended with sum 0."""
        new = (0, n_key - self.total.shape[-1])
        return ColumnSums(pad(self.total, new), pad(self.viewers, new), pad(self.even, new))

    def plus(self, added: "ColumnSums") -> "ColumnSums":
        """Return these sums plus the sums over new rows, which may have more keys, as with a KV cache."""
        before = self.widened(added.total.shape[-1])
        return ColumnSums(
            before.total + added.total, before.viewers + added.viewers, before.even + added.even
        )

    def select(self, prompts: Sequence[int]) -> "ColumnSums":
        """Return the sums of some prompts of the batch, given by index."""
        indices = list(prompts)
        return ColumnSums(self.total[indices], self.viewers[indices], self.even[indices])

    def by(self, rank: str) -> Float[Tensor, "b h k"]:
        """Return the value to rank keys by: "mass" (sum), "received" (mean over viewers) or "lift".

        Lift is the sum divided by its null, which is the sum if every row spread its attention evenly. The
        value of a key that no row sees is NaN.
        """
        scale = {"received": self.viewers, "mass": torch.ones_like(self.even), "lift": self.even}
        return (self.total / scale[rank]).masked_fill(self.viewers == 0, torch.nan)

    def seen_by(self, least: float) -> Bool[Tensor, "b 1 k"]:
        """Mark the keys that at least `least` rows see: a share of all rows if below 1, else a number."""
        rows = self.viewers.amax(-1, keepdim=True)
        return self.viewers >= (least * rows if least < 1 else rows.new_full((), least)).clamp(1)


def attended(
    call: attention_hook.Call, visible: Visibility, rows: Bool[Tensor, "b q"] | None = None
) -> ColumnSums:
    """Compute the column sums of a call's attention, over all rows except padding or over `rows`."""
    real = visible.row_is_real  # (b, q)
    if rows is not None:
        real = real & rows
        labels = Labels(real.long() - 1, 1, visible.key_is_real.long() - 1, 1)
    elif visible in _labels:
        labels = _labels[visible]
    else:
        labels = Labels(real.long() - 1, 1, visible.key_is_real.long() - 1, 1)
        _labels[visible] = labels
    view = View.from_call(call, visible, labels)
    view = backend.with_lse(view, lambda: attention_hook.compute_attention(call))
    sums = backend.sums(view, entropy=False, regions=False)
    viewers = _over_viewers(visible, real.double())
    even = _over_viewers(visible, real / visible.count.double())
    return ColumnSums(sums["column_sum"][:, 0], viewers, even)


def _over_viewers(visible: Visibility, value: Float[Tensor, "b q"]) -> Float[Tensor, "b 1 k"]:
    """Return, for each key, the sum of the rows' values over the rows that see the key.

    All rows between a row that sees a key and the end of the window see that key too.
    """
    last = visible.last_visible.contiguous()  # (b, q), never decreasing
    keys = torch.arange(visible.keys, device=last.device).expand(len(last), -1).contiguous()
    first = torch.searchsorted(last, keys)
    suffix = pad(value.flip(1).cumsum(1).flip(1), (0, 1))
    total = suffix.gather(1, first)
    if visible.reach is not None:
        behind = torch.searchsorted(visible.first_visible.contiguous(), keys, right=True)
        total = total - suffix.gather(1, behind)
    return (total * visible.key_is_real)[:, None].float()


def top(
    values: Float[Tensor, "b h k"], allowed: Bool[Tensor, "b #h k"], k: int
) -> Bool[Tensor, "b h k"]:
    """Mark the k allowed keys with the largest values, or all allowed keys if there are fewer."""
    best = values.masked_fill(~allowed, -torch.inf).topk(k, dim=-1).indices
    return torch.zeros_like(values, dtype=torch.bool).scatter_(-1, best, True) & allowed


def heaviest(weight: Float[Tensor, "b h k"], share: float) -> Bool[Tensor, "b h k"]:
    """Mark the fewest keys whose weights sum to `share`, heaviest first; all keys if they sum to less."""
    ordered, key = weight.sort(dim=-1, descending=True, stable=True)
    needed = ordered.cumsum(-1) - ordered < share
    return torch.zeros_like(needed).scatter_(-1, key, needed)


def hide(
    call: attention_hook.Call,
    columns: Bool[Tensor, "b #h k"],
    rows: Bool[Tensor, "b q"] | None = None,
) -> attention_hook.Call:
    """Return the call with keys hidden from all rows or from `rows`; the same call if nothing is hidden."""
    if not bool(columns.any()) or (rows is not None and not bool(rows.any())):
        return call
    n_rows = call.query.shape[2]
    plain = call.mask is None and not call.causal and rows is None
    if plain and not bool(columns.all(-1).any()):
        # All rows see the same keys: one mask row per head, expanded over the rows.
        return replace(call, mask=~columns[:, :, None].expand(-1, -1, n_rows, -1))
    before = attention_hook.explicit_mask(call)
    hidden = columns[:, :, None] if rows is None else columns[:, :, None] & rows[:, None, :, None]
    after = before & ~hidden
    blind = ~after.any(-1, keepdim=True)
    return replace(call, mask=torch.where(blind, before, after), causal=False)

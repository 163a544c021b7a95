"""blocked against reference on drawn shapes, masks and groups; reference against plain arithmetic."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.attention import Labels, View, reference
from floatscope.attention.cpu import blocked, closed_form, strips, weights
from floatscope.attention.forward import ByRegion
from floatscope.models import Direction, Visibility


@st.composite
def views(draw, with_lse=None):
    """Any batch the attention hook can produce: direction, padding, grouped heads, cached rows, groups."""
    batch = draw(st.integers(1, 3))
    kv, per_kv = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    keys = draw(st.integers(2, 40))
    direction = draw(st.sampled_from(list(Direction)))
    queries = keys if direction is Direction.BIDIRECTIONAL else draw(st.integers(1, keys))
    block = draw(st.integers(1, 8)) if direction.in_blocks else None
    dim = draw(st.sampled_from([4, 8, 16]))
    padding = torch.tensor([draw(st.integers(0, keys - 1)) for _ in range(batch)])
    padding[draw(st.integers(0, batch - 1))] = 0
    n_groups, n_regions = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    spread = draw(st.sampled_from([0.1, 1.0, 3.0]))
    grid = {}
    if block is not None:  # another grid, another current block and another end for each prompt
        grid["offset"] = torch.tensor([draw(st.integers(0, block - 1)) for _ in range(batch)])
        grid["current"] = torch.tensor([draw(st.integers(0, keys)) for _ in range(batch)])
        grid["end"] = torch.tensor([draw(st.integers(int(p) + 1, keys)) for p in padding])
    visible = Visibility(direction, block, padding, queries, keys, **grid)
    real = visible.key_is_real
    region = torch.randint(0, n_regions, (batch, keys), generator=generator)
    group = torch.randint(0, n_groups, (batch, queries), generator=generator)
    view = View(
        query=torch.randn(batch, kv * per_kv, queries, dim, generator=generator) * spread,
        key=torch.randn(batch, kv, keys, dim, generator=generator) * spread,
        scale=dim**-0.5,
        mask=visible.mask,
        causal=visible.is_causal and visible.mask is None and queries > 1,
        visible=visible,
        labels=Labels(
            group.masked_fill(~visible.row_is_real, -1),
            n_groups,
            region.masked_fill(~real, -1),
            n_regions,
        ),
        state=torch.rand(batch, keys, n_regions, generator=generator),
    )
    if draw(st.booleans()) if with_lse is None else with_lse:
        score = view.query.double() @ reference.expand(view.key, kv * per_kv).double().mT
        score = (score * view.scale).masked_fill(~reference.may_look(view), -torch.inf)
        view = View(**{**vars(view), "lse": score.logsumexp(-1).float()})
    return view


def close(found, expected, tolerance=1e-5):
    assert found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


def view_without_state(view):
    return View(**{**vars(view), "state": None})


def rounding_of_entropy(view):
    """It is a difference of numbers as large as a score, so it is as exact as those."""
    score = view.query.norm(dim=-1).max() * view.key.norm(dim=-1).max() * view.scale
    return max(1e-5, 4 * torch.finfo(torch.float32).eps * score.item())


@settings(max_examples=150, deadline=None)
@given(
    views(),
    st.sampled_from([64, 4096, 1 << 20]),
    st.sampled_from([1, 3, 32]),
    st.sampled_from([0.0, 60.0]),
    st.sampled_from([0, 3]),
)
def test_blocked_sums_equal_the_reference(view, block_bytes, few, mild, threads):
    """Whatever the size of a tile (also of one query), the height of a strip, where lse goes, and
    whose dot products are taken."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked, "_BLOCK_BYTES", block_bytes)
        patch.setattr(strips, "_MIN_ROWS", few)
        patch.setattr(weights, "_MILD", mild)
        patch.setattr(blocked, "_MANY_THREADS", threads)
        fast = blocked.sums(view)
        mass = blocked.sums(view_without_state(view), entropy=False, regions=False)
    slow = reference.sums(view)
    counted = (view.labels.group >= 0)[:, None, :]
    close(fast["column_sum"], slow["column_sum"])
    close(mass["column_sum"], slow["column_sum"])  # mass alone goes a shorter way
    # A padding row has no entropy worth comparing: it sees itself alone.
    close(fast["entropy"] * counted, slow["entropy"] * counted, rounding_of_entropy(view))
    close(fast["region_sum"] * counted[..., None], slow["region_sum"] * counted[..., None])
    close(fast["rolled"] * counted[:, 0, :, None], slow["rolled"] * counted[:, 0, :, None])


@settings(max_examples=60, deadline=None)
@given(views(), st.integers(1, 3))
def test_column_sums_by_region_give_flow_and_groups(view, n_groups):
    """Where a group is a union of regions; otherwise there is no such way."""
    labels = view.labels
    own = labels.region[:, labels.region.shape[1] - labels.group.shape[1] :]
    group = torch.where(labels.group >= 0, own.clamp(max=n_groups - 1), -1)
    view = replace(view, labels=replace(labels, group=group, n_groups=n_groups))
    by_region = ByRegion.from_labels(view.labels)
    assert by_region is not None
    sums = blocked.sums(replace(view, labels=by_region.labels), entropy=False, regions=False)
    slow = reference.sums(view)
    close(by_region.column_sum(sums["column_sum"]), slow["column_sum"])
    expected = view.labels.from_region.double().mT[:, None] @ slow["region_sum"].double()
    close(by_region.flow_sum(sums["column_sum"]), expected)
    if (
        group.shape[1] > 1
        and bool((group[:, -2:] >= 0).all())
        and bool((own[:, -1] == own[:, -2]).all())
    ):
        apart = torch.cat([group[:, :-1], group[:, -1:] + n_groups], dim=1)
        assert ByRegion.from_labels(replace(labels, group=apart, n_groups=2 * n_groups)) is None


@settings(max_examples=150, deadline=None)
@given(views())
def test_closed_form_columns_equal_the_reference(view):
    fast, slow = closed_form.columns(view), reference.columns(view)
    assert torch.equal(fast["viewers"], slow["viewers"])
    for name in ("score", "cosine", "query_norm"):
        count = slow["viewers"][:, None].clamp(min=1)
        scale = slow[name].abs().max().clamp_min(1).item()
        close(fast[name] / count / scale, slow[name] / count / scale)
    close(fast["key_norm"], slow["key_norm"])


@pytest.mark.parametrize("direction", [d for d in Direction if d is not Direction.BIDIRECTIONAL])
@pytest.mark.parametrize(("queries", "padding"), [(70, 0), (50, 0), (70, 5)])
def test_strips_cover_every_visible_key_and_end_at_the_last(direction, queries, padding):
    """Every key that a row sees is in its strip; without padding no strip ends behind its last key."""
    block = 8 if direction.in_blocks else None
    at = {"current": torch.tensor([40])} if direction.in_blocks else {}
    visible = Visibility(direction, block, torch.tensor([padding]), queries, 70, **at)
    zero, one = torch.zeros(1, 2, 70, 4), torch.zeros(1, 70, dtype=torch.long)
    labels = Labels(one[:, :queries], 1, one, 1)
    causal = visible.is_causal and visible.mask is None
    view = View(zero[:, :, :queries], zero, 1.0, visible.mask, causal, visible, labels)
    found = strips.plan(view, 1 << 10)
    assert [strip.start for strip, _ in found] == [0, *(strip.stop for strip, _ in found[:-1])]
    for strip, bands in found:
        part = visible.matrix[0, strip.start : strip.stop]
        assert part[:, : strip.common].all() and not part[:, strip.last :].any()
        if strip.hidden is not None:
            assert torch.equal(~strip.hidden, part[:, strip.common : strip.last])
        if not padding:
            assert part[:, strip.last - 1].any()
        rows = sum(band.rows.stop - band.rows.start for band in bands)
        assert rows == strip.stop - strip.start
    assert (len(found) > 1) == (not padding and queries > strips._MIN_ROWS)


def test_forward_of_many_rows_equals_the_reference():
    """Several strips, several tiles and several heads in a tile, as they are, and a bias on top."""
    generator = torch.Generator().manual_seed(0)
    size = 150
    visible = Visibility(Direction.BLOCK_CAUSAL, 32, torch.tensor([0, 0]), size, size)
    group = torch.randint(0, 3, (2, size), generator=generator)
    query, key = (torch.randn(2, n, size, 8, generator=generator) for n in (4, 2))
    labels = Labels(group, 3, group, 3)
    bias = torch.randn(2, 4, 1, size, generator=generator)
    for more in (None, bias):
        view = View(query, key, 8**-0.5, visible.mask, False, visible, labels, bias=more)
        score = query.double() @ reference.expand(key, 4).double().mT * view.scale
        score = score if more is None else score + more
        score = score.masked_fill(~visible.mask, -torch.inf)
        view = View(**{**vars(view), "lse": score.logsumexp(-1).float()})
        fast, slow = blocked.sums(view), reference.sums(view)
        for name in ("column_sum", "entropy", "region_sum"):
            close(fast[name], slow[name])


def test_column_sums_of_all_groups_count_the_queries():
    """Every counted row sums to one, so all columns together sum to the number of rows."""
    visible = Visibility(Direction.BIDIRECTIONAL, None, torch.tensor([2, 0]), 9, 9)
    group = torch.zeros(2, 9, dtype=torch.long).masked_fill(~visible.key_is_real, -1)
    view = View(
        torch.randn(2, 4, 9, 8),
        torch.randn(2, 2, 9, 8),
        8**-0.5,
        visible.mask,
        False,
        visible,
        Labels(group, 1, group, 1),
    )
    total = blocked.sums(view)["column_sum"].sum(-1)
    torch.testing.assert_close(total, torch.tensor([7.0, 9.0])[:, None, None].expand(2, 1, 4))


def test_reference_equals_the_definition():
    """Two keys, scores known by hand: A = softmax([0, ln 3]) = [1/4, 3/4]."""
    visible = Visibility(Direction.BIDIRECTIONAL, None, torch.tensor([0]), 2, 2)
    log3 = torch.log(torch.tensor(3.0))
    one = torch.zeros(1, 2, dtype=torch.long)
    view = View(
        query=torch.tensor([[[[1.0], [0.0]]]]),
        key=torch.tensor([[[[0.0], [float(log3)]]]]),
        scale=1.0,
        mask=None,
        causal=False,
        visible=visible,
        labels=Labels(torch.tensor([[0, 1]]), 2, one, 1),
    )
    sums = reference.sums(view)
    expected = torch.tensor([[[[0.25, 0.75]], [[0.5, 0.5]]]]).double()
    torch.testing.assert_close(sums["column_sum"], expected, rtol=1e-7, atol=1e-7)
    entropy = torch.tensor([[[0.5623351446188083, 0.6931471805599453]]]).double()
    torch.testing.assert_close(sums["entropy"], entropy, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("direction", list(Direction))
def test_uniform_null_is_what_zero_scores_give(direction):
    """The null in closed form against attention whose scores are all equal."""
    from floatscope.stats import uniform

    block = 3 if direction.in_blocks else None
    for size, offset in ((1, 0), (2, 0), (7, 0), (7, 2), (33, 0), (33, 1)):
        current = size // 2
        rule = {"offset": torch.tensor([offset]), "current": torch.tensor([current])}
        visible = Visibility(direction, block, torch.tensor([0]), size, size, **rule)
        one = torch.zeros(1, size, dtype=torch.long)
        zero = torch.zeros(1, 1, size, 4)
        labels = Labels(one, 1, one, 1)
        causal = visible.is_causal and size > 1
        view = View(zero, zero, 1.0, visible.mask, causal, visible, labels)
        mass = reference.sums(view)["column_sum"][0, 0, 0] / size
        rule = {"offset": offset, "current": current}
        found = torch.from_numpy(uniform.mass(direction, block, size, **rule))
        torch.testing.assert_close(found, mass)
        seen = uniform.visible_queries(direction, block, size, **rule)
        assert seen.tolist() == visible.matrix[0].sum(0).tolist()


def test_causal_null_of_position_zero_is_harmonic():
    from floatscope.stats import uniform

    found = uniform.mass(Direction.CAUSAL, None, 100)[0]
    assert found == pytest.approx(sum(1 / i for i in range(1, 101)) / 100)

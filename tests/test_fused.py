"""The GPU kernels, run on the CPU by Triton's interpreter, against the float64 reference."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from hypothesis import given, settings
from hypothesis import strategies as st
from test_statistics import close, rounding_of_entropy, views
from tiny_models import sampler_for
from triton import language
from triton.runtime import interpreter

from floatscope.attention import backend, captured, reference
from floatscope.attention.cpu import closed_form, norms
from floatscope.attention.gpu import few, fused, vectors
from floatscope.attention.gpu import strongest as peaks
from floatscope.attention.gpu.overlapped import _matrix
from floatscope.attention.lse_capture import LseCapture
from floatscope.attention.shapes import one_hot


@pytest.fixture(scope="module", autouse=True)
def language_patched_once():
    """Put the interpreter's functions into Triton's language once.

    The interpreter does so at every call of a function, inside kernels too: half of a kernel's time.
    """
    names = SimpleNamespace(__globals__={"tl": language, "core": language.core})
    scope = interpreter._patch_lang(names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", lambda fn: interpreter._LangPatchScope())
        yield
    scope.restore()


def small(family, folder, layers=2):
    """Of few layers and two heads: the interpreter takes its time for each."""
    import floatscope as fs
    from floatscope.models import tiny

    shape = tiny.Shape(layers=layers, width=16, heads=2, kv_heads=1)
    return fs.load(tiny.write(family, folder, shape))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {family: small(family, folder / family) for family in ("LLaDA", "Dream", "Llama")}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles in each direction, also of unequal sizes."""
    monkeypatch.setattr(fused, "column_tiles", lambda view: fused.Tiles(16, 32, 4, 2))
    monkeypatch.setattr(fused, "row_tiles", lambda view: fused.Tiles(32, 16, 4, 2))
    monkeypatch.setattr(vectors, "_TILE", 16)


def same(found, expected, view, tolerance=1e-5):
    counted = (view.labels.group >= 0)[:, None, :]
    close(found["column_sum"], expected["column_sum"], tolerance)
    # A padding row counts nowhere.
    close(
        found["entropy"] * counted,
        expected["entropy"] * counted,
        max(tolerance, rounding_of_entropy(view)),
    )
    each = counted[..., None]
    close(found["region_sum"] * each, expected["region_sum"] * each, tolerance)
    close(found["rolled"] * each[:, 0], expected["rolled"] * each[:, 0], tolerance)


@settings(max_examples=15, deadline=None)
@given(views(with_lse=True))
def test_kernels_equal_the_reference(view):
    """Every direction, padding, grouped heads, cached rows, groups and regions."""
    same(fused.sums(view), reference.sums(view), view)


@settings(max_examples=6, deadline=None)
@given(views(with_lse=False), st.booleans(), st.integers(0, 1000))
def test_kernels_read_an_edited_mask(view, per_head, seed):
    """Whatever mask an intervention made, also one for each head."""
    b, h, q, _ = view.query.shape
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(b, h if per_head else 1, q, view.key.shape[2], generator=generator) < 0.6
    mask = reference.may_look(view) & drawn
    mask[..., -1] |= ~mask.any(-1)
    score = view.query.double() @ reference.expand(view.key, h).double().mT * view.scale
    lse = score.masked_fill(~mask, -torch.inf).logsumexp(-1).float()
    view = replace(view, mask=mask, causal=False, lse=lse)
    same(fused.sums(view), reference.sums(view), view)


@settings(max_examples=5, deadline=None)
@given(views(with_lse=True))
def test_16_bit_inputs_give_the_reference_within_rounding(view):
    """The sums of rounded q and k, rounded no further than 1e-3. (The interpreter's products of
    bfloat16 are wrong; bench/gpu.py checks those on a GPU.)"""
    view = replace(view, query=view.query.half(), key=view.key.half())
    score = view.query.double() @ reference.expand(view.key, view.query.shape[1]).double().mT
    score = (score * view.scale).masked_fill(~reference.may_look(view), -torch.inf)
    view = replace(view, lse=score.logsumexp(-1).float())
    same(fused.sums(view), reference.sums(view), view, 1e-3)


@settings(max_examples=6, deadline=None)
@given(views(with_lse=True), st.booleans(), st.booleans(), st.booleans())
def test_kernels_return_only_requested_sums(view, entropy, regions, rolling):
    view = view if rolling else replace(view, state=None)
    found, whole = fused.sums(view, entropy=entropy, regions=regions), reference.sums(view)
    close(found["column_sum"], whole["column_sum"])
    assert ("entropy" in found) == entropy
    assert ("region_sum" in found) == regions
    assert ("rolled" in found) == rolling


@settings(max_examples=6, deadline=None)
@given(views())
def test_columns_equal_the_closed_form(view):
    fast, slow = vectors.columns(view), closed_form.columns(view)
    assert torch.equal(fast["viewers"], slow["viewers"])
    real = view.labels.real
    for name in ("score", "cosine", "query_norm", "key_norm"):
        scale = slow[name].abs().max().clamp_min(1)
        close(fast[name] * real / scale, slow[name] * real / scale)


def test_totals_by_region():
    """Rows of several parts and of a part cut short, of a tensor whose rows lie apart; some count nowhere."""
    torch.manual_seed(0)
    region = torch.randint(-1, 5, (2, 700))
    values = torch.randn(2, 3, 700, 16)[..., 4:9]
    there = one_hot(region, 5)
    expected = torch.einsum("bqf,bhqr->bhfr", there.double(), values.double())
    found = vectors.region_totals(there, values)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_value_norms_equal_the_reference():
    module = torch.nn.Module()
    module.o_proj = torch.nn.Linear(6 * 16, 40, bias=False)
    value = torch.randn(2, 3, 37, 16).half()
    torch.testing.assert_close(
        vectors.value_norms(module, value), norms.value_norms(module, value), rtol=2e-5, atol=2e-5
    )


@settings(max_examples=10, deadline=None)
@given(views(with_lse=True), st.integers(1, 9), st.booleans(), st.data())
def test_the_strongest_keys_of_rows(view, top, scarce, data):
    """Those of the whole row; several blocks and fewer keys than asked for; little memory."""
    n = view.query.shape[2]
    start = data.draw(st.integers(0, n - 1))
    stop = data.draw(st.integers(start + 1, min(n, start + 20)))  # more than a tile holds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peaks, "BLOCK", 16)
        if scarce:
            patch.setattr(peaks, "_SCRATCH", 1)
        key, weight = peaks.strongest(fused.Launch(view), start, stop, top)
    for b in range(len(view.query)):
        held = captured.hold(view, start, stop)
        whole = captured._scores(held, b, torch.arange(stop - start)).softmax(-1)
        counted = (view.labels.group[b, start:stop] >= 0)[None, :, None]
        _, expected = captured.strongest(whole, top)
        close(weight[b] * counted, expected * counted)
        # The weights are those of the keys named; ties may fall either way.
        at = key[b].long()
        named = whole.gather(-1, at.clamp(min=0)) * (at >= 0)
        close(named * counted, expected * counted)
        assert all(
            len(set(k)) == len(k)
            for r in at.tolist()
            for q in r
            for k in [[i for i in q if i >= 0]]
        )


@settings(max_examples=8, deadline=None)
@given(views(with_lse=True), st.booleans())
def test_computed_log_sum_exp_equals_the_reference(view, scarce):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peaks, "BLOCK", 16)
        if scarce:
            patch.setattr(peaks, "_SCRATCH", 1)
        found = peaks.log_sum_exp(replace(view, lse=None))
    counted = (view.labels.group >= 0)[:, None].expand_as(found)
    torch.testing.assert_close(found[counted], view.lse[counted], rtol=1e-5, atol=1e-5)


def test_lse_is_not_requested_for_few_queries():
    """cuDNN's kernel for them gives other last bits when asked; all other statistics need none."""
    from floatscope.attention import lse_capture

    asked = []

    for n in (1, lse_capture.FEW - 1, lse_capture.FEW):
        ear = lse_capture.LseCapture()
        q = torch.zeros(1, 2, n, 8)

        def kernel(*args, n=n):
            asked.append((n, args[4]))
            return torch.zeros(1)

        kernel.__name__ = "kernel"
        kernels = lse_capture._LSE_ON_REQUEST
        lse_capture._LSE_ON_REQUEST = (kernel,)
        try:
            ear.__torch_dispatch__(kernel, (), (q, q, q, None, False))
        finally:
            lse_capture._LSE_ON_REQUEST = kernels
    assert asked == [(1, False), (lse_capture.FEW - 1, False), (lse_capture.FEW, True)]


def test_strongest_keys_under_a_mask():
    view = next(iter_views())
    mask = torch.rand(1, 2, 5, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    mask[..., 0] = True
    score = (view.query @ view.key.mT * view.scale).masked_fill(~mask, -torch.inf)
    view = replace(view, mask=mask, lse=score.logsumexp(-1))
    key, weight = peaks.strongest(fused.Launch(view), 1, 5, 3)
    expected_key, expected = captured.strongest(score.softmax(-1)[0, :, 1:], 3)
    close(weight[0], expected)
    some = expected > 0
    assert torch.equal(key[0].long()[some], expected_key[some])


@pytest.mark.parametrize("family", ["LLaDA", "Dream", "Llama"])
def test_trace_by_kernels_equals_trace_by_blocks(models, family, monkeypatch):
    """Through the capture and the recorder, with padding; the causal one with a KV cache."""
    model = models[family]
    traced_alike(model, ["Hello", "Hi"], sampler_for(model, length=2, steps=2), monkeypatch)


@pytest.mark.parametrize("family", ["LLaDA", "Dream", "Llama"])
def test_anchors_by_kernels_equal_anchors_by_blocks(models, family, monkeypatch):
    """Hidden columns are chosen by what the kernels measure; the answers are the same."""
    import floatscope as fs

    model = models[family]
    sampler = sampler_for(model, length=2, steps=2)
    prompts = ["Hello there", "Hi, and"]
    used = []
    kernels_alone = few.measured
    monkeypatch.setattr(few, "measured", lambda *a: used.append(1) or kernels_alone(*a))
    with fs.interventions.MaskColumns(k=2)(model):
        plain = [d.answer_ids for d in model.generate(prompts, sampler)]
        assert not used
        monkeypatch.setattr(backend, "on_gpu", lambda tensor: True)
        assert [d.answer_ids for d in model.generate(prompts, sampler)] == plain
    assert used


def traced_alike(model, prompts, sampler, monkeypatch, **options):
    plain = model.trace(prompts, sampler, **options)
    monkeypatch.setattr(backend, "on_gpu", lambda tensor: True)
    for one, other in zip(plain, model.trace(prompts, sampler, **options), strict=True):
        for name, array in one.data.variables.items():
            if array.dtype.kind == "f":
                np.testing.assert_allclose(
                    other.data[name], array, atol=2e-4, rtol=2e-4, err_msg=name
                )
            elif name != "row_key":  # ties between equal weights may fall either way
                np.testing.assert_array_equal(other.data[name], array, err_msg=name)


PROMPTS = ["Hello there, how are", "Hi"]  # more keys than a tile holds, and padding


@pytest.mark.filterwarnings("ignore:statistics take the slower path")
@pytest.mark.parametrize("family", ["LLaDA", "Llama"])
def test_rows_where_only_some_layers_fit(tmp_path, family, monkeypatch):
    """A bias goes to the blocked path; the layers before it do not."""
    import floatscope as fs

    model = small(family, tmp_path, layers=3)  # this intervention needs them
    with fs.interventions.BoostDynamics()(model):
        traced_alike(model, PROMPTS, sampler_for(model, length=2, steps=1), monkeypatch)


@pytest.mark.parametrize("family", ["LLaDA", "Llama"])
def test_trace_without_captured_log_sum_exp_is_the_same(models, family, monkeypatch):
    model = models[family]
    monkeypatch.setattr(LseCapture, "lse", lambda self, query: None)
    traced_alike(model, PROMPTS, sampler_for(model, length=2, steps=1), monkeypatch)


def test_kernels_that_do_not_fit_the_gpu(models, monkeypatch):
    """Every launch refused: blocked serves, padding rows poison nothing."""
    from triton.runtime.errors import OutOfResources

    def refuse(*args, **kwargs):
        raise OutOfResources(2, 1, "shared memory")

    backend._notice.cache_clear()
    model = models["Llama"]
    monkeypatch.setattr(LseCapture, "lse", lambda self, query: None)
    monkeypatch.setattr(fused, "sums", refuse)
    monkeypatch.setattr(few, "measured", refuse)
    with pytest.warns(UserWarning, match="does not fit this GPU"):
        traced_alike(model, PROMPTS, sampler_for(model, length=2, steps=1), monkeypatch)
    monkeypatch.setattr(peaks, "strongest", refuse)
    monkeypatch.setattr(peaks, "log_sum_exp", refuse)
    with pytest.warns(UserWarning, match="kept no log-sum-exp"):
        traced_alike(model, PROMPTS, sampler_for(model, length=2, steps=1), monkeypatch)


def test_sums_are_float32_whatever_the_default():
    view = next(iter_views())
    score = view.query @ view.key.mT * view.scale
    view = replace(view, lse=score.logsumexp(-1))
    torch.set_default_dtype(torch.float16)
    try:
        found = fused.sums(view)
    finally:
        torch.set_default_dtype(torch.float32)
    close(found["entropy"], reference.sums(view)["entropy"])
    close(found["region_sum"], reference.sums(view)["region_sum"])


def test_weights_are_not_taken_for_a_log_sum_exp():
    """With one key the math kernel's weights have the shape of a log-sum-exp."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(1, 2, 1, 8)
    with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH), LseCapture() as ear:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert ear.lse(q) is None


def test_unsupported_views_fall_back_with_one_notice(monkeypatch):
    monkeypatch.setattr(backend, "on_gpu", lambda tensor: True)
    backend._notice.cache_clear()
    view = next(iter_views())
    view = replace(view, lse=None)
    with pytest.warns(UserWarning, match="slower path: attention's forward kept no log-sum-exp"):
        found = backend.sums(view)
    close(found["column_sum"], reference.sums(view)["column_sum"])
    close(
        backend.sums(view)["column_sum"], found["column_sum"]
    )  # no second notice: it would be an error


@pytest.mark.parametrize("queries", [5, 66])  # few rows have kernels of their own
@pytest.mark.parametrize("kind", ["all", "causal", "masked"])
def test_column_sums_by_kernels(queries, kind, monkeypatch):
    import floatscope as fs

    generator = torch.Generator().manual_seed(queries)
    query, key = (
        torch.randn(2, heads, n, 16, generator=generator)
        for heads, n in ((4, queries), (2, queries + 3))
    )
    mask = torch.rand(2, 1, queries, queries + 3, generator=generator) > 0.3
    mask[..., 0] = True
    asked = {"causal": kind == "causal", "mask": mask if kind == "masked" else None}
    asked["groups"] = torch.arange(queries) % 3 - 1
    plain = fs.column_sums(query, key, **asked)
    used = []
    for module, name in ((few, "measured"), (fused, "sums")):
        right = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, right=right, **k: used.append(1) or right(*a, **k)
        )
    monkeypatch.setattr(backend, "on_gpu", lambda tensor: True)
    close(fs.column_sums(query, key, **asked), plain)
    assert used


def iter_views():
    from floatscope.attention import Labels, View
    from floatscope.models import Direction, Visibility

    visible = Visibility(Direction.BIDIRECTIONAL, None, torch.tensor([0]), 5, 5)
    one = torch.zeros(1, 5, dtype=torch.long)
    yield View(
        torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8), 0.3, None, False, visible,
        Labels(one, 1, one, 1),
    )  # fmt: skip


def test_layouts_the_copy_engine_reads():
    by_row = torch.zeros(2, 7, 4, 64).transpose(1, 2)  # (b, h, n, d), heads side by side
    assert _matrix(by_row) == ([14, 256], 7, 0, 64)
    by_head = torch.zeros(2, 4, 7, 64)
    assert _matrix(by_head) == ([56, 64], 28, 7, 0)
    assert _matrix(by_head[:, :2]) is None
    assert _matrix(by_head.mT.contiguous().mT) is None


def test_attention_kernels_are_asked_for_the_log_sum_exp():
    """The argument that says so is where we think it is, in both kernels that have one."""
    from floatscope.attention.lse_capture import _LSE_ON_REQUEST

    for kernel in _LSE_ON_REQUEST:
        assert kernel._schema.arguments[4].name == "compute_log_sumexp"
    with LseCapture() as ear:
        q = torch.randn(1, 2, 5, 8)
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    torch.testing.assert_close(ear.lse(q), (q @ q.mT / 8**0.5).logsumexp(-1))


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("n", [3, 1])
def test_few_row_kernels_equal_the_reference(n, edited, monkeypatch):
    """All sums and the strongest keys from logarithms that are written once: of rows at the columns that a
    cache of fixed size has for them, with padding and columns that are not filled; also under a mask."""
    from floatscope.attention import Labels, View
    from floatscope.models import Direction, Visibility

    monkeypatch.setattr(peaks, "BLOCK", 16)
    monkeypatch.setattr(few, "_NUMBERS", 128)
    monkeypatch.setattr(few, "_COLUMNS", 32)
    draw = torch.Generator().manual_seed(0)
    first, room = 31 - n, 36  # of which 31 are filled
    at = torch.arange(first, 31)
    rule = (Direction.CAUSAL, None, torch.tensor([0, 5]), n, room, None, None, None, first, None)
    visible = Visibility(*rule, at, torch.tensor(31))
    region = torch.randint(0, 3, (2, room), generator=draw).masked_fill(~visible.key_is_real, -1)
    groups = torch.tensor([[0, 1, 0], [1, -1, 1]])[:, -n:]
    labels = Labels(groups, 2, region, 3, first, at)
    query, key = torch.randn(2, 4, n, 8, generator=draw), torch.randn(2, 2, room, 8, generator=draw)
    mask = visible.mask
    if edited:
        mask = mask.expand(-1, 4, -1, -1).clone()
        mask[:, 1:3, :, 3:9] = False
    state = torch.rand(2, room, 3, generator=draw)
    view = View(query, key, 0.4, mask, False, visible, labels, state=state)
    found = few.measured(view, True)
    same(backend.sums(found), reference.sums(view), view)
    # A mask that was edited hides more than direction does.
    assert ("score" not in found.few_sums.arrays) == edited
    if not edited:
        fast, slow = backend.columns(found), closed_form.columns(view)
        assert torch.equal(fast["viewers"], slow["viewers"])
        for name in ("score", "cosine", "query_norm", "key_norm"):
            close(fast[name] * labels.real, slow[name] * labels.real)
    begin = min(1, n - 1)
    number, weight = few.strongest(found.few_sums, begin, n, 4)
    whole = reference.attention(view)[:, :, begin:].float()
    close(weight, captured.strongest(whole, 4)[1])
    close(whole.gather(-1, number.long()), weight)


def test_unseen_columns_get_zero():
    """A cache of fixed size has some, behind as many rows as fill their tiles: they must not be read past."""
    from floatscope.attention import Labels, View
    from floatscope.models import Direction, Visibility

    at, room, none = torch.arange(16, 32), 64, None
    rule = (Direction.BLOCK_CAUSAL, 8, torch.tensor([0, 3]), 16, room, none, none, none, 16, none)
    visible = Visibility(*rule, at, torch.tensor(32))
    region = torch.zeros(2, room, dtype=torch.long).masked_fill(~visible.key_is_real, -1)
    labels = Labels(torch.zeros(2, 16, dtype=torch.long), 1, region, 1, 16, at)
    query, key = torch.randn(2, 2, 16, 16), torch.randn(2, 1, room, 16)
    view = View(query, key, 0.3, visible.mask, False, visible, labels)
    fast, slow = vectors.columns(view), closed_form.columns(view)
    assert torch.equal(fast["viewers"], slow["viewers"])
    for name in ("score", "cosine", "query_norm"):
        close(fast[name], slow[name])
        assert not fast[name][..., 32:].any()

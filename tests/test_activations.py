"""Activations on disk are the hidden states of transformers, and memory does not grow with prompts."""

import numpy as np
import pytest
import torch
from test_trace_exact import TOLERANCE, eager
from tiny_models import FAMILIES, sampler_for

import floatscope as fs
from floatscope.trace import activations as store

PROMPTS = ["Hello there, you", "Hi", "And now something else"]


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_the_hidden_states_of_their_step(models, family, tmp_path):
    model = models[family]
    sampler = sampler_for(model, length=6, steps=3)
    found = model.activations(PROMPTS, sampler, out=tmp_path / "a", layers=[0, 2], batch_size=2)
    done = model.generate(PROMPTS, sampler)
    where = found.data[list(store.COLUMNS)].load().to_dataframe().astype(int)
    layers = {layer: found.layer_input(layer).values for layer in (0, 2)}
    for prompt, decoding in enumerate(done):
        for step in range(decoding.steps):
            rows = where[(where["prompt"] == prompt) & (where["step"] == step)]
            canvas = decoding.canvas[step]
            ids = canvas[canvas >= 0]
            # With a cache a position's row is computed once: the prompt's at step 0, then one more.
            last = model.is_diffusion or step == 0
            wanted = np.arange(len(ids)) if last else np.array([len(ids) - 1])
            assert rows["position"].tolist() == wanted.tolist()
            assert rows["token"].tolist() == ids[wanted].tolist()
            assert rows["final_token"].tolist() == decoding.canvas[-1, wanted].tolist()
            masked = (ids == model.mask_id)[wanted] if model.is_diffusion else 0 * wanted
            assert rows["masked"].tolist() == masked.astype(int).tolist()
            hidden = eager(model, torch.from_numpy(ids).long()[None])[2]
            for layer, values in layers.items():
                states = hidden[layer][0, wanted].numpy()
                np.testing.assert_allclose(values[rows.index], states, rtol=1e-4, atol=1e-5)
    assert found.info["fingerprint"] == model.fingerprint and "Hello" not in repr(found)
    assert not any(m._forward_pre_hooks for m in model.net.modules())


@pytest.mark.parametrize("family", ["LLaDA", "Llama"])
def test_chosen_rows_are_a_subset_of_all_rows(models, family, tmp_path):
    model, sampler = models[family], sampler_for(models[family])
    whole = model.activations(PROMPTS, sampler, out=tmp_path / "all", layers=1)
    table, values = (
        whole.data[list(store.COLUMNS)].load().to_dataframe(),
        whole.layer_input(1).values,
    )
    start = np.array([len(model.encode(p).ids) for p in PROMPTS])[table["prompt"].astype(int)]
    answer = table["position"] >= start
    for number, (positions, steps, flags) in enumerate(
        [
            ("prompt", None, ~answer),
            ("answer", [0, 2], answer & table["step"].isin([0, 2])),
            ("masked", slice(1, 3), (table["masked"] == 1) & table["step"].isin([1, 2])),
            ("revealed", None, answer & (table["masked"] == 0)),
            (0, None, table["position"] == 0),
            ([1, 2], -1, table["position"].isin([1, 2]) & (table["step"] == sampler.n_steps - 1)),
        ]
    ):
        out = tmp_path / str(number)
        part = model.activations(
            PROMPTS, sampler, out=out, layers=1, positions=positions, steps=steps
        )
        assert len(part) == flags.sum(), positions
        np.testing.assert_allclose(part.layer_input(1), values[flags], **TOLERANCE)
        for name in store.COLUMNS:
            assert part.data[name].values.tolist() == table[name][flags].tolist()


def test_a_prompt_that_has_ended_gives_no_more_rows(models, tmp_path, monkeypatch):
    """In a cached batch it stays, inert; its rows are not kept."""
    model, sampler = models["Llama"], fs.Autoregressive(length=6)
    free = model.generate(PROMPTS, fs.Autoregressive(length=6, stop_at_eos=False))
    monkeypatch.setattr(model, "end_ids", (free[1].answer_ids[1],))
    done = model.generate(PROMPTS, sampler)
    assert len({d.steps for d in done}) > 1
    found = model.activations(PROMPTS, sampler, out=tmp_path / "a", layers=0)
    for b, decoding in enumerate(done):
        rows = int((found.data["prompt"] == b).sum())
        assert rows == len(decoding.prompt.ids) + decoding.steps - 1


def test_memory_does_not_grow_with_the_number_of_prompts(models, tmp_path, monkeypatch):
    """At most a chunk, and what one forward gave; the rest is on disk while decoding goes on."""
    model, sampler = models["LLaDA"], fs.Confidence(length=8, steps=4)
    width, held, on_disk = model.net.config.hidden_size, {}, []
    chunk = 16
    monkeypatch.setattr(store, "_CHUNK_BYTES", chunk * 4 * width)
    add = store.RowWriter.add

    def watched(writer, rows):
        held[len(held)] = writer.nbytes + rows.nbytes
        add(writer, rows)
        assert writer.nbytes < chunk * rows[0].nbytes
        on_disk.append(writer._rows.shape[0])

    monkeypatch.setattr(store.RowWriter, "add", watched)
    peaks = []
    for n in (2, 12):
        held.clear(), on_disk.clear()
        found = model.activations(["Hello you"] * n, sampler, out=tmp_path / str(n), batch_size=2)
        peaks.append(max(held.values()))
        assert len(found) - on_disk[-1] < chunk
        assert on_disk == sorted(on_disk)
    forward = 2 * (len("Hello you") + 1 + 8) * model.n_layers * width * 4
    assert max(peaks) <= forward + chunk * model.n_layers * width * 4
    assert peaks[1] <= peaks[0] + chunk * model.n_layers * width * 4


def test_store_has_the_requested_dtype(models, tmp_path):
    model, sampler = models["LLaDA"], fs.Confidence(length=4, steps=2)
    exact = model.activations("Hello", sampler, out=tmp_path / "auto").layer_input(1)
    assert exact.dtype == np.float32
    for kind, digits in (("float16", 2**-11), ("bfloat16", 2**-8)):
        narrow = model.activations("Hello", sampler, out=tmp_path / kind, dtype=kind)
        np.testing.assert_allclose(narrow.layer_input(1), exact, rtol=digits, atol=1e-6)
        wanted = torch.from_numpy(exact.values).to(getattr(torch, kind)).float()
        np.testing.assert_array_equal(narrow.layer_input(1), wanted)
    with pytest.raises(fs.UsageError, match="cannot be stored as 'int8'"):
        model.activations("Hello", sampler, out=tmp_path / "x", dtype="int8")


def test_float16_overflow_is_refused_and_leaves_no_store(models, tmp_path, monkeypatch):
    model = models["LLaDA"]
    assert model.fingerprint  # asked once, and not of the weights as they are here
    weight = model.net.get_input_embeddings().weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight.mul_(1e7)
    try:
        with pytest.raises(fs.CaptureError, match="does not fit into float16.*bfloat16"):
            model.activations("Hello", fs.Confidence(length=4), out=tmp_path / "a", dtype="float16")
    finally:
        with torch.no_grad():
            weight.copy_(before)
    assert not list(tmp_path.iterdir())
    assert not any(m._forward_pre_hooks for m in model.net.modules())


def test_batches_yield_all_rows_in_parts(llada, tmp_path):
    found = llada.activations(PROMPTS, fs.Confidence(length=4, steps=2), out=tmp_path / "a")
    parts = list(found.batches(2, size=7))
    assert [len(p) for p in parts[:-1]] == [7] * (len(parts) - 1)
    whole = found.layer_input(2)
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert parts[1]["position"].values.tolist() == whole["position"].values[7:14].tolist()
    again = fs.Activations.load(tmp_path / "a")
    assert len(again) == len(found)
    with pytest.raises(fs.TraceError, match="no layer 9 in these activations"):
        again.layer_input(9)


def test_invalid_choices_are_named(llada, tmp_path):
    sampler, out = fs.Confidence(length=4, steps=2), tmp_path / "a"
    for options, words in [
        ({"positions": "gold"}, "positions = 'gold'"),
        ({"positions": 99}, "no position 99"),
        ({"layers": 7}, "no layer 7"),
        ({"steps": 7}, "no step 7"),
    ]:
        with pytest.raises(fs.UsageError, match=words):
            llada.activations("Hello", sampler, out=out, **options)
    assert not list(tmp_path.iterdir())
    llada.trace("Hello", sampler, keep="mass").save(out)
    with pytest.raises(fs.TraceError, match="exists"):
        llada.activations("Hello", sampler, out=out)
    with pytest.raises(fs.TraceError, match="contains no activations"):
        fs.Activations.load(out)
    with pytest.raises(fs.TraceError, match="no activations at"):
        fs.Activations.load(tmp_path / "nowhere")

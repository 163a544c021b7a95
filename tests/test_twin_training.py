"""The twin's training: what is asked of which document, and the model against transformers' own."""

import json
import lzma
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from floatscope.tasks.held_out import held_out
from training.twin import batches, documents, export, model, parent, probes, sources

TOKENIZER = Path(__file__).parent.parent / "training" / "tokenizer.json"


@pytest.fixture(scope="module")
def writer():
    reading = sources.Reading(
        "Vienna",
        "Vienna lies on the Danube. It is the capital of Austria.",
        (
            ("Where does Vienna lie?", ("on the Danube",)),
            ("What is Vienna?", ("the capital of Austria",)),
        ),
    )
    other = sources.Reading(
        "Prague", "Prague lies on the Vltava.", (("Which river?", ("the Vltava",)),)
    )
    article = sources.Article("Danube", "The Danube is a long river. It flows through Vienna. " * 6)
    told = documents.Told(
        documents.SUMMARISE, reading.passage, "", "It is about Vienna and a river."
    )
    return documents.Writer(TOKENIZER, [reading, other] * 20, [other], [reading], [article], [told])


def steps(writer, *, causal, seed=0):
    draw = np.random.default_rng(1)
    text = draw.integers(300, 8000, 50_000).astype(np.uint16)
    return batches.Steps(
        writer, text, np.arange(0, 49_000, 700), causal=causal, seed=seed, tokens=8192
    )


def test_a_step_is_the_same_for_both_objectives_and_every_time(writer):
    mdm, arm = steps(writer, causal=False), steps(writer, causal=True)
    for step in (0, 7):
        one, two = mdm.batch(step), arm.batch(step)
        again = steps(writer, causal=False).batch(step)
        assert all(
            torch.equal(getattr(one, f), getattr(again, f))
            for f in batches.Batch.__dataclass_fields__
        )
        assert len(one.ids) == len(two.ids) == 8192
        assert torch.equal(one.starts, two.starts) and torch.equal(one.positions, two.positions)
        asked = torch.zeros(8192, dtype=torch.bool)
        asked[one.rows + 1] = True
        assert torch.equal(one.ids[~asked], two.ids[~asked])  # only what is asked for is masked
        assert (one.ids[asked] == parent.MASK).all()
        assert torch.equal(two.ids[one.rows + 1], one.targets)
    assert not torch.equal(mdm.batch(0).ids, mdm.batch(1).ids)
    assert not torch.equal(steps(writer, causal=False, seed=1).batch(0).ids, mdm.batch(0).ids)


def test_both_objectives_are_asked_for_the_same_tokens_with_the_same_weights(writer):
    """A token's weight under `mdm`, over many draws of what is masked, is its weight under `arm`."""
    mdm, arm = steps(writer, causal=False), steps(writer, causal=True)
    fixed = arm.documents(3)
    roles = np.concatenate([d.roles for d in fixed])
    bounds = np.concatenate([[0], np.cumsum([len(d.ids) for d in fixed])])
    mean = np.zeros(len(roles))
    for i in range(400):
        asked, factor = mdm._masked(roles, bounds, np.random.default_rng(i))
        assert (roles[asked] != documents.GIVEN).all()
        mean[asked] += factor / 400
    for role in (documents.TEXT, documents.SHORT, documents.LONG, documents.FILL):
        assert mean[roles == role].mean() == pytest.approx(1, abs=0.05)


def test_no_document_is_asked_for_its_first_token_or_from_another_document(writer):
    for causal in (False, True):
        batch = steps(writer, causal=causal).batch(2)
        assert (batch.positions[batch.rows + 1] > 0).all()
        assert batch.weights.sum() == pytest.approx(1, abs=0.12)


def test_answers_end_and_fill_their_canvas(writer):
    import random

    rng = random.Random(0)
    for kind in writer.kinds:
        document = next(d for d in (kind(rng) for _ in range(200)) if d is not None)
        asked = document.roles != documents.GIVEN
        assert asked.any() and len(document.ids) <= documents.LONGEST, kind.__name__
        assert document.ids[-1] == parent.END and asked[-1], kind.__name__
        assert (document.ids[document.roles == documents.FILL] == parent.END).all()


def test_what_is_held_out(tmp_path):
    held = next(f"Title {i}" for i in range(999) if held_out(f"Title {i}"))
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "held-titles.txt").write_text("Vienna\n")
    wiki = tmp_path / "simple.jsonl.xz"
    with lzma.open(wiki, "wt") as file:
        for title in ("vienna", held, "Berlin"):
            file.write(
                json.dumps({"title": title, "text": "It lies on a river with old bridges. " * 9})
                + "\n"
            )
    found = sources.Sources(tmp_path, wiki, tmp_path, tmp_path)
    assert [a.title for a in found.articles()] == ["Berlin"]
    assert [a.title for a in found.articles(held=True)] == [held]
    assert sources.clean("A () town.\nShort\nIt lies on a river and has many old bridges.") == (
        "It lies on a river and has many old bridges."
    )


def small_parent(layers):
    draw = torch.Generator().manual_seed(0)
    out = {
        n: 0.05 * torch.randn(layers, *shape, generator=draw) for n, shape in parent.MAPS.items()
    }
    out["embed"] = 0.1 * torch.randn(parent.VOCAB, parent.WIDTH, generator=draw)
    for name in ("input_layernorm", "post_attention_layernorm"):
        out[name] = 1 + 0.1 * torch.randn(layers, parent.WIDTH, generator=draw)
    out["norm"] = 1 + 0.1 * torch.randn(parent.WIDTH, generator=draw)
    return out


@pytest.fixture(scope="module")
def two_layers():
    patch = pytest.MonkeyPatch()
    for module in (model, export, probes):
        patch.setattr(module, "LAYERS", 2)
    yield small_parent(2)
    patch.undo()


@pytest.mark.parametrize("causal", [False, True])
def test_the_model_is_transformers_llama_with_the_adapter_merged(two_layers, causal):
    """Two documents in one row give what each gives alone in transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    twin = model.Twin(two_layers, causal=causal, rank=4)
    with torch.no_grad():
        for b in twin.b.values():
            b.normal_(0, 0.05, generator=torch.Generator().manual_seed(1))
    config = LlamaConfig(
        vocab_size=parent.VOCAB,
        hidden_size=parent.WIDTH,
        intermediate_size=parent.HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=parent.HEADS,
        num_key_value_heads=parent.KV_HEADS,
        rms_norm_eps=parent.EPS,
        tie_word_embeddings=True,
        is_causal=causal,
        rope_parameters={"rope_type": "default", "rope_theta": parent.THETA},
    )
    net = LlamaForCausalLM(config).eval()
    state = {
        "model.embed_tokens.weight": two_layers["embed"].clone(),
        "model.norm.weight": two_layers["norm"],
    }
    state["model.embed_tokens.weight"][parent.MASK] = twin.mask.detach()
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    for layer in range(2):
        for name in parent.MAPS:
            state[f"model.layers.{layer}.{name}.weight"] = twin.merged(name)[layer].detach()
        for i, name in enumerate(("input_layernorm", "post_attention_layernorm")):
            state[f"model.layers.{layer}.{name}.weight"] = twin.norms[layer, i].detach()
    net.load_state_dict(state)
    texts = [[5, 9, parent.MASK, 77, 1234], [40000, parent.MASK, 12]]
    with torch.no_grad():
        ours = probes.packed_logits(
            twin,
            texts,
            [range(1, 4), range(1, 4)],
            twin.table(torch.float32),
            twin.weights(torch.float32),
        )
        for text, got in zip(texts, ours, strict=True):
            want = net(torch.tensor([text]), use_cache=False).logits[0, :3]
            want[:, parent.MASK] = got[:, parent.MASK] = 0
            assert torch.allclose(got, want, atol=2e-4)


def test_pieces_and_names_hold_the_whole_adapter(two_layers, tmp_path):
    twin = model.Twin(two_layers, causal=False, rank=4)
    trained = {n: p.detach() for n, p in twin.named_parameters()}
    export.pieces(trained, tmp_path, "mdm", most=100_000)
    back = export.weights(tmp_path)
    assert len(list(tmp_path.iterdir())) > 1
    assert all(torch.allclose(back[n], trained[n], rtol=0.01) for n in trained)
    named = export.named(trained)
    assert sum(t.numel() for t in named.values()) == sum(p.numel() for p in trained.values())
    q = trained["a.self_attn_q_proj"]
    assert torch.equal(named["model.layers.1.self_attn.q_proj.lora_A.weight"], q[1])
    rounded = export.rounded("a.self_attn_q_proj", q)
    assert 0 < float((rounded - q).abs().max()) <= float(q.abs().max()) / 127


def test_the_text_loss_of_a_model_that_knows_nothing_is_that_of_guessing(two_layers):
    """Planted: an embedding of zeros gives the uniform distribution over all tokens but the mask."""
    blank = {**two_layers, "embed": torch.zeros_like(two_layers["embed"])}
    held = np.random.default_rng(0).integers(20, 49_000, 3000)
    for causal in (False, True):
        loss = probes.text_loss(model.Twin(blank, causal=causal, rank=4), held, 3, length=64)
        assert loss == pytest.approx(np.log(parent.VOCAB - 1), abs=1e-4)


def test_readings_are_read_back(tmp_path):
    import gzip

    from training.twin.prepare import _line, readings

    one = sources.Reading("T", "passage", (("q", ("a", "b")),))
    lines = _line("article", sources.Article("x", "y")) + _line("squad", one)
    with gzip.open(tmp_path / "readings.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(lines)
    articles, by = readings(tmp_path)
    assert articles == [sources.Article("x", "y")] and by["squad"] == [one] and not by["hotpot"]
    assert json.loads(lines.splitlines()[1])["kind"] == "squad"
    assert replace(one, title="") != one


def test_the_tokenizer_is_the_one_given():
    assert Tokenizer.from_file(str(TOKENIZER)).get_vocab_size() == 8192

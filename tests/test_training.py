"""The training code on a CPU: export, resume, falling loss, clear errors. Tiny settings."""

from __future__ import annotations

import csv
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from training import data, evaluate, probes, state  # noqa: E402
from training.common import BOS, EOS, MASK  # noqa: E402
from training.evaluate import answer, natural_loss, pad_left, wilson  # noqa: E402
from training.export import export, join, load_exported, pieces  # noqa: E402
from training.model import Config, Model  # noqa: E402
from training.objectives import Loss, arm_targets, mdm_inputs, mdm_mask, unpack  # noqa: E402
from training.probes import anchors  # noqa: E402
from training.rows import ANSWER_END, ANSWER_TOKEN, Dials, Encoder, RowMaker  # noqa: E402
from training.train import main  # noqa: E402

TINY = Config(layers=2, width=32, heads=4, hidden=48, context=256)
WORDS = (
    "the river ran past the mill and the old bridge where nobody had walked since the war. "
    "She said that it was late; he did not answer. "
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus in the real one's format."""
    import lzma

    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(0)
    words = WORDS.split()
    text = [" ".join(rng.choice(words) for _ in range(3000)) for _ in range(4)]
    articles = {
        str(i): {
            "title": str(i),
            "extract": " ".join(rng.choice(words) for _ in range(60)) + ". And so on.",
        }
        for i in range(120)
    }
    with lzma.open(folder / "books.txt.xz", "wt") as file:
        file.write("\f".join(text))
    with lzma.open(folder / "wikipedia_summaries.json.xz", "wt") as file:
        json.dump(articles, file)
    return folder


@pytest.fixture(scope="module")
def maker() -> RowMaker:
    return RowMaker(np.arange(4, 3000, dtype=np.uint16), ["A natural passage of some words."])


def smoke(objective: str, corpus: Path, out: Path, *more: str) -> None:
    main(
        [
            "--objective",
            objective,
            "--device",
            "cpu",
            "--smoke",
            "--corpus",
            str(corpus),
            "--out",
            str(out),
            "--workers",
            "1",
            "--log-every",
            "8",
            "--probe-every",
            "16",
            "--eval-n",
            "2",
            "--eval-seconds",
            "0",
            *more,
        ]
    )


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("objective", ["arm", "mdm"])
def test_smoke_training_learns_and_resumes_exactly(
    objective: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    torch.set_num_threads(1)

    def short(model: Model, held: np.ndarray, **sizes: int) -> dict:
        """The loss on held-out text has a test of its own."""
        return natural_loss(model, held, length=64, rows=4, draws=2)

    for module in (evaluate, probes):
        monkeypatch.setattr(module, "natural_loss", short)
    smoke(objective, corpus, tmp_path / "whole", "--steps", "24")
    curve = table(tmp_path / "whole" / "curve.csv")
    assert float(curve[-1]["answer_loss"]) < float(curve[0]["answer_loss"]) - 1
    assert {"step", "layer", "position0_share", "persistence_zscore"} <= set(
        table(tmp_path / "whole" / "emergence.csv")[0]
    )
    with pytest.raises(SystemExit):  # stopped by the clock at its first chance
        smoke(objective, corpus, tmp_path / "broken", "--steps", "24", "--limit", "0.001")
    assert state.read_record(tmp_path / "broken")["step"] == 8
    smoke(objective, corpus, tmp_path / "broken", "--resume")
    one, two = (state.load_model(tmp_path / k).state_dict() for k in ("whole", "broken"))
    assert all(torch.equal(one[k], two[k]) for k in one)
    for name in ("curve.csv", "emergence.csv"):
        steps = [[r["step"] for r in table(tmp_path / k / name)] for k in ("whole", "broken")]
        assert set(steps[0]) <= set(steps[1])
    results = json.loads((tmp_path / "whole" / "results.json").read_text())
    assert results["left_out"] and results["natural"]["nats_per_token"] > 0


def test_same_data_and_start_for_both_objectives(maker: RowMaker):
    plan = data.SMOKE
    assert np.array_equal(plan.batch(3, maker), plan.batch(3, maker))
    assert plan.batch(3, maker).shape == (plan.tokens // plan.length(3), plan.length(3))
    a, b = (Model(TINY, causal=c).init(5).state_dict() for c in (True, False))
    assert all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("length", [64, 256, 1024])
def test_rows_are_full_and_marked(maker: RowMaker, length: int):
    rng = random.Random(length)
    rows = [maker.closed_book(rng, length), maker.biographies(rng, length), maker.text(rng, length)]
    if length > 64:
        rows += [maker.context(rng, length, Dials()) for _ in range(20)]
    for row in rows:
        ids, roles = unpack(torch.from_numpy(row.astype(np.int64)))
        assert len(row) == length and ids[0] == BOS
        assert (ids[roles == ANSWER_END] == EOS).all()
        assert not (ids == MASK).any()
        ends = (roles == ANSWER_END).sum()
        starts = ((roles == ANSWER_TOKEN) & (roles.roll(1) != ANSWER_TOKEN)).sum()
        assert ends == starts


def test_cached_encoder_equals_the_tokenizer():
    encode = Encoder()
    for text in (" Mara's 12 hens, 3.5 (old)!  Two spaces\n\nand a line ", "naïve Ⅳ 日本 🙂"):
        assert encode(text) == encode.tokenizer.encode(text, add_special_tokens=False).ids
        assert encode.tokenizer.decode(encode(text)) == text


def test_mdm_masks_answers_or_whole_rows(maker: RowMaker):
    rng = random.Random(1)
    cells = np.stack([maker.context(rng, 128, Dials()) for _ in range(64)])
    ids, roles = unpack(torch.from_numpy(cells.astype(np.int64)))
    g = torch.Generator().manual_seed(0)
    masked, weight = mdm_mask(ids, roles, Loss(whole_row=0.0), g)
    assert masked.any() and not masked[roles < ANSWER_TOKEN].any() and not masked[:, 0].any()
    inputs, at, target, w = mdm_inputs(ids, masked, weight, Loss())
    assert torch.equal(inputs == MASK, masked)
    assert torch.equal(target, ids.reshape(-1)[at])
    assert torch.isclose(w.sum(), weight.sum())
    draws = [mdm_mask(ids, roles, Loss(), g)[1].sum() for _ in range(200)]
    assert abs(float(torch.stack(draws).mean()) - 1) < 0.05  # weights are 1/t: unbiased


def test_mdm_prefixes_show_the_first_tokens(maker: RowMaker):
    rng = random.Random(1)
    cells = np.stack([maker.context(rng, 128, Dials()) for _ in range(64)])
    ids, roles = unpack(torch.from_numpy(cells.astype(np.int64)))
    g = torch.Generator().manual_seed(0)
    masked, weight = mdm_mask(ids, roles, Loss(whole_row=0.0), g, prefix=1.0)
    inside = (roles >= ANSWER_TOKEN) & (roles.roll(1, 1) >= ANSWER_TOKEN)
    assert not (masked.roll(1, 1) & ~masked & inside).any()  # never a gap
    assert masked[roles >= ANSWER_END].all() and not masked[roles < ANSWER_TOKEN].any()
    assert 0.3 < float(masked[roles == ANSWER_TOKEN].float().mean()) < 0.9
    assert 0.8 < float(weight.sum()) < 1.3


def test_arm_targets_are_the_next_tokens():
    ids, roles = torch.tensor([[BOS, 10, 11, 12]]), torch.tensor([[0, 1, 2, 3]])
    target, weight = arm_targets(ids, roles, Loss(weights=(1, 2, 3, 4, 5)))
    assert target[:3].tolist() == [10, 11, 12]
    assert torch.allclose(weight, torch.tensor([2, 3, 4, 0]) / 9)


@pytest.mark.parametrize("causal", [True, False])
def test_left_padding_changes_nothing(causal: bool):
    torch.manual_seed(0)
    model = Model(TINY, causal=causal).init(1)
    long, short = list(range(10, 40)), list(range(50, 65))
    with torch.no_grad():
        ids, visible, positions = pad_left([long, short], torch.device("cpu"))
        both = model.logits(ids, visible=visible, positions=positions)
        alone = model.logits(torch.tensor([short]))
    torch.testing.assert_close(both[1, -15:], alone[0], atol=1e-5, rtol=1e-5)
    assert len(answer(model, [long, short], slots=3)) == 2


def _llama(folder: Path, causal: bool):
    """The exported folder in transformers, the way the package loads it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    if causal:
        return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    c = json.loads((folder / "config.json").read_text())
    config = LlamaConfig(
        hidden_size=c["d_model"],
        intermediate_size=c["mlp_hidden_size"],
        num_hidden_layers=c["n_layers"],
        num_attention_heads=c["n_heads"],
        num_key_value_heads=c["n_kv_heads"],
        vocab_size=c["vocab_size"],
        max_position_embeddings=c["max_sequence_length"],
        rms_norm_eps=c["rms_norm_eps"],
        rope_parameters={"rope_type": "default", "rope_theta": c["rope_theta"]},
        tie_word_embeddings=c["weight_tying"],
        is_causal=False,
    )
    block = r"model\.transformer\.blocks\.(\d+)\."
    mapping = {
        r"model\.transformer\.wte": "model.embed_tokens",
        r"model\.transformer\.ln_f": "model.norm",
        block + "attn_norm": r"model.layers.\1.input_layernorm",
        block + "ff_norm": r"model.layers.\1.post_attention_layernorm",
        block + "q_proj": r"model.layers.\1.self_attn.q_proj",
        block + "k_proj": r"model.layers.\1.self_attn.k_proj",
        block + "v_proj": r"model.layers.\1.self_attn.v_proj",
        block + "attn_out": r"model.layers.\1.self_attn.o_proj",
        block + "ff_proj": r"model.layers.\1.mlp.gate_proj",
        block + "up_proj": r"model.layers.\1.mlp.up_proj",
        block + "ff_out": r"model.layers.\1.mlp.down_proj",
    }
    model, info = LlamaForCausalLM.from_pretrained(
        folder, config=config, key_mapping=mapping, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model


@pytest.mark.parametrize("causal", [True, False])
def test_export_gives_the_same_logits_in_transformers(causal: bool, tmp_path: Path):
    model = Model(TINY, causal=causal).init(3)
    with torch.no_grad():
        for p in model.parameters():  # norms away from 1, and logits of some size
            p.add_(torch.randn_like(p) * 0.1)
    export(model, tmp_path / "release", dtype=torch.float32)
    other = _llama(tmp_path / "release", causal).eval()
    ids = torch.randint(0, TINY.vocab, (2, 40))
    with torch.no_grad():
        mine, theirs = model.logits(ids), other(input_ids=ids, use_cache=False).logits
        again = load_exported(tmp_path / "release").logits(ids)
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    assert torch.equal(mine, again)
    paths = pieces(tmp_path / "release", tmp_path / "pieces", "x")
    join(tmp_path / "pieces" / "x.json", tmp_path / "joined")
    assert (tmp_path / "joined" / "model.safetensors").read_bytes() == (
        tmp_path / "release" / "model.safetensors"
    ).read_bytes()
    paths[0].write_bytes(b"damaged")
    with pytest.raises(SystemExit, match="do not give"):
        join(tmp_path / "pieces" / "x.json", tmp_path / "joined")


def test_anchor_rules():
    received = torch.full((1, 100), 0.005)
    received[0, 7] = 0.5
    for rule in ("zscore", "excess"):
        assert anchors(received, rule).nonzero().tolist() == [[0, 7]]


def test_bound_of_a_uniform_model_is_log_vocab():
    model = Model(TINY, causal=False)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    held = np.random.default_rng(0).integers(4, 8000, 4000).astype(np.uint16)
    found = natural_loss(model, held, length=64, rows=16, draws=16)
    assert abs(found["nats_per_token"] - np.log(TINY.vocab)) < 0.15


def test_wilson_contains_the_share():
    low, high = wilson(95, 100)
    assert low < 0.95 < high and wilson(0, 10)[0] == 0


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--objective", "mdm", "--out", "x", "--device", "cpu", "--smoke"], "--corpus"),
        (["--objective", "mdm", "--out", "x", "--corpus", "nowhere"], "no budget"),
        (
            [
                "--objective",
                "mdm",
                "--out",
                "x",
                "--corpus",
                "nowhere",
                "--device",
                "cpu",
                "--steps",
                "9",
            ],
            "--smoke",
        ),
    ],
)
def test_training_arguments_that_cannot_be_are_named(argv: list[str], says: str):
    with pytest.raises(SystemExit, match=says):
        main(argv)


def test_no_gpu_and_no_corpus_are_said(tmp_path: Path):
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit, match="no GPU"):
            main(
                [
                    "--objective",
                    "arm",
                    "--out",
                    str(tmp_path / "r"),
                    "--corpus",
                    "nowhere",
                    "--steps",
                    "5",
                ]
            )
    with pytest.raises(SystemExit, match=r"books\.txt\.xz"):
        main(
            [
                "--objective",
                "arm",
                "--out",
                str(tmp_path / "r"),
                "--corpus",
                str(tmp_path),
                "--device",
                "cpu",
                "--smoke",
            ]
        )

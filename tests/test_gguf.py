"""GGUF files: what is read from one is what transformers reads, bit for bit; what cannot be is refused."""

import hashlib
import struct

import numpy as np
import pytest
import tiny_gguf
import torch
from gguf import GGML_QUANT_SIZES, dequantize
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import floatscope as fs
from floatscope.models import gguf_header, gguf_network
from floatscope.models.tiny import Shape

# Q4_1 is SmolLM2's; heads of 16 numbers and half as many for keys, so that each takes another turn.
SHAPE = Shape(width=64, heads=4, kv_heads=2, ffn=96)
ODD = [
    *(
        "",
        " ",
        "a",
        "ab abab",
        "  two  ",
        "\n\n\tx\r\n",
        "ünïcödé ☃ 漢字 👩‍👩‍👧",
        "e\u0301 é",
        "\x00\x7f",
    ),
    *(
        "<|begin|>ab<|end|>",
        "<|im_start|>user\nHi<|im_end|>",
        "1234567 3.14 ١٢٣",
        "don't I'LL",
        "\ufeff",
    ),
    *(
        "def f(x):\n    return x  # ok",
        "a" * 300,
        "www.example.com/?q=1&r=2",
        "\ud7ff\ue000\U0010ffff",
    ),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("llama", "Q4_1"), ("llama", "F16"), ("qwen2", "Q8_0"), ("qwen3", "Q5_0")],
)
def test_logits_equal_those_of_transformers(tmp_path, architecture, kind):
    file = tiny_gguf.write(tmp_path, architecture, kind, SHAPE)
    given = {"gguf_file": file.name, "local_files_only": True}
    config = AutoConfig.from_pretrained(file.parent, **given)
    config.head_dim = SHAPE.width // SHAPE.heads  # which it does not read of a Qwen3
    theirs = AutoModelForCausalLM.from_pretrained(
        file.parent, config=config, dtype=torch.float32, **given
    )
    ours = fs.load(file, dtype="float32", device="cpu")
    expected = theirs.state_dict()
    assert list(ours.net.state_dict()) == list(expected)
    for key, value in ours.net.state_dict().items():
        assert torch.equal(value, expected[key]), key
    for (name, one), (_, other) in zip(
        ours.net.named_buffers(), theirs.named_buffers(), strict=True
    ):
        assert torch.equal(one, other), name
    described, own = config.to_dict(), ours.net.config.to_dict()
    for name in ("rope_parameters", "rms_norm_eps", "vocab_size", "tie_word_embeddings", "eos_token_id",
                 "bos_token_id", "pad_token_id", "max_position_embeddings", "attention_bias"):  # fmt: skip
        assert own.get(name) == described.get(name), name
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **given)
    assert ours.tokenizer.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    for text in ODD:
        text = text.encode("utf-8", "replace").decode()
        assert ours.tokenizer(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert ours.tokenizer.decode(tokenizer(text)["input_ids"]) == tokenizer.decode(
            tokenizer(text)["input_ids"]
        )


def kinds():
    """All that the gguf package can dequantise."""
    for kind, (_, width) in GGML_QUANT_SIZES.items():
        try:
            dequantize(np.zeros((1, width), np.uint8), kind)
        except NotImplementedError:
            continue
        yield kind


@pytest.mark.parametrize("kind", [pytest.param(k, id=k.name) for k in kinds()])
def test_every_type_dequantised_in_pieces_equals_one_pass(kind, monkeypatch):
    """Any bytes: what they are as numbers does not depend on how many are taken together."""
    monkeypatch.setattr(gguf_network, "_AT_ONCE", 5)
    block, width = GGML_QUANT_SIZES[kind]
    content = np.random.default_rng(3).integers(0, 256, 7 + 18 * width, dtype=np.uint8)
    place = gguf_header.Place((6, 3 * block), int(kind), 7, 18 * width)
    with np.errstate(all="ignore"):  # some bytes are no numbers
        values = gguf_network._dequantised(content, place)
        expected = dequantize(content[7:].reshape(6, -1), kind)
    np.testing.assert_array_equal(values, expected)
    assert values.shape == place.shape


def test_a_family_is_named_by_the_file(tmp_path):
    file = tiny_gguf.write(tmp_path)
    with pytest.raises(fs.ModelError, match="a GGUF file states its family"):
        fs.load(file, family="Llama")
    content = file.read_bytes().replace(b"llama", b"gemma")
    file.write_bytes(content)
    with pytest.raises(fs.ModelError, match="unknown architecture 'gemma'"):
        fs.load(file)


def test_unknown_tensors_and_scaled_positions_are_refused(tmp_path):
    """transformers passes over both: a tensor of frequencies, and a scaled rotation."""
    file = tiny_gguf.write(tmp_path)
    content = file.read_bytes()
    file.write_bytes(content.replace(b"blk.0.attn_v.weight", b"blk.0.rope_freqs.wt"))
    with pytest.raises(fs.ModelError, match="1 tensors left over: blk.0.rope_freqs.wt"):
        fs.load(file)
    header = gguf_header.read(tiny_gguf.write(tmp_path))
    header.fields["llama.rope.scaling.type"] = "yarn"
    with pytest.raises(fs.ModelError, match="positions are scaled .'yarn'"):
        gguf_network.config_of(header, file)


def test_a_header_with_duplicate_or_overlapping_tensors_is_refused(tmp_path):
    """Tensors that lie in one another claim more weights than the file has bytes for."""
    file = tiny_gguf.write(tmp_path)
    content = file.read_bytes()
    header = gguf_header.read(file)
    assert header.fields["tokenizer.ggml.tokens"] == 259
    assert header.fields["general.architecture"] == "llama"
    file.write_bytes(content.replace(b"blk.0.attn_q.weight", b"blk.0.attn_k.weight"))
    with pytest.raises(fs.ModelError, match=r"tensor blk\.0\.attn_k\.weight 2 times"):
        gguf_header.read(file)
    everywhere = bytearray(content)
    for name, place in header.tensors.items():  # every tensor is the largest one, at the first byte
        at = everywhere.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name)
        if len(place.shape) == 2:
            everywhere[at + 4 : at + 20] = struct.pack("<QQ", 32, 400)
            everywhere[at + 24 : at + 32] = struct.pack("<Q", 0)
    file.write_bytes(everywhere)
    with pytest.raises(fs.ModelError, match="its tensors are larger in total than the file"):
        gguf_header.read(file)


@pytest.mark.real
def test_smollm_equals_what_transformers_reads():
    """Digests of what transformers 5.22 made of the file: its weights, and ids of odd texts."""
    model = fs.load("twin/parent", dtype="float32", device="cpu", check=False)
    assert model.name == "twin/parent"
    assert model.fingerprint == "7901993eeca39ecb"
    assert (model.end_ids, model.context, model.n_layers) == ((2,), 8192, 30)
    ids = [model.tokenizer(t.encode("utf-8", "replace").decode())["input_ids"] for t in ODD]
    assert hashlib.sha256(repr(ids).encode()).hexdigest()[:16] == "d0d34d4ec32d0466"

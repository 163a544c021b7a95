"""Defaults on published checkpoints: tokenizer, mask, ends, template and blocks are what their files say."""

import json
import struct
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from published_checkpoints import CONFIGS, config_of, write, write_tokenizer
from tokenizers import Tokenizer
from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

import floatscope as fs
from floatscope.models import FAMILIES, source
from floatscope.models.outline import outlined
from floatscope.models.registry import family_of
from floatscope.models.spec import ModelSpec

# --- vocab.txt and spiece.model ------------------------------------------------------------------

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "##s", "a", "[MASK]", "b", "london", "##on"]


@pytest.fixture(scope="module", params=["bert-base-uncased", "distilbert-base-uncased"])
def with_words(request, tmp_path_factory):
    """A checkpoint with vocab.txt alone, whose mask is not at the family's 103."""
    path = write(request.param, tmp_path_factory.mktemp("words"), vocab_size=200)
    (path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return path


def test_vocab_txt_gives_the_tokenizer_and_its_mask(with_words):
    model = fs.load(with_words)
    assert model.mask_id == 7
    assert model.end_ids == ()
    assert model.encode("Hello hellos London").ids == (2, 4, 4, 5, 9)
    assert model.generate("Hello", fs.Confidence(length=3)).canvas[0].tolist() == [2, 4, 7, 7, 7]


def test_outline_reads_the_same_vocabulary(with_words):
    outline = outlined(ModelSpec(str(with_words)))
    assert (outline.mask_id, outline.end_ids) == (7, ())


def test_special_tokens_map_names_the_mask(with_words, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, "<m>"]))
    named = {"mask_token": {"content": "<m>", "lstrip": False}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(named))
    assert source.tokenizer(tmp_path, FAMILIES["bert"]).mask_token_id == 11


def test_a_special_token_outside_the_vocabulary_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    (tmp_path / "special_tokens_map.json").write_text('{"mask_token": "<mask>"}')
    with pytest.raises(fs.ModelError, match=r"does not contain <mask>.*special_tokens_map"):
        source.tokenizer(tmp_path, FAMILIES["bert"])


def test_added_tokens_keep_their_ids(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    (tmp_path / "added_tokens.json").write_text('{"[NEW]": 11}')
    tokenizer = source.tokenizer(tmp_path, FAMILIES["bert"])
    assert tokenizer("hello [NEW]", add_special_tokens=False)["input_ids"] == [4, 11]
    (tmp_path / "added_tokens.json").write_text('{"[NEW]": 40}')
    with pytest.raises(fs.ModelError, match=r"does not contain \[NEW\]"):
        source.tokenizer(tmp_path, FAMILIES["bert"])


def test_a_cased_vocabulary_keeps_capitals(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, "Hello"]))
    ids = source.tokenizer(tmp_path, FAMILIES["bert"])("Hello hello")["input_ids"]
    assert ids == [2, 11, 4, 3]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    ids = source.tokenizer(tmp_path, FAMILIES["bert"])("Hello hello")["input_ids"]
    assert ids == [2, 4, 4, 3]


PIECES = [
    *[("<pad>", 3), ("<unk>", 2), ("[CLS]", 3), ("[SEP]", 3), ("(", 4), (")", 4), ("▁hello", 1)],
    *[("▁", 1), ("h", 1), ("e", 1), ("l", 1), ("o", 1), ("9", 1), (",", 1), ("[MASK]", 4)],
    *[("▁9,", 1), ("▁9", 1), ("lo", 1), ("▁2", 1), ("9,", 1)],
]


def bytes_of(number, value):
    """A field of a protocol buffer."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value):
    rest, byte = value >> 7, value & 127
    return bytes([byte | 128]) + varint(rest) if rest else bytes([byte])


NORMALISER = struct.pack("<I", 1024) + bytes(1024)  # that changes nothing


def spiece(pieces=PIECES, *, kind=1, unknown=1, characters=NORMALISER):
    """A SentencePiece model."""
    content = b""
    for place, (text, sort) in enumerate(pieces):
        one = bytes_of(1, text.encode()) + bytes_of(2, -float(place)) + bytes_of(3, sort)
        content += bytes_of(1, one)
    trainer = bytes_of(3, kind) + bytes_of(40, unknown)
    return content + bytes_of(2, trainer) + bytes_of(3, bytes_of(2, characters))


def test_spiece_model_gives_the_tokenizer_and_its_mask(tmp_path):
    """An ALBERT whose mask is 14; albert-base-v2's is 4."""
    path = write("albert-base-v2", tmp_path)
    (path / "spiece.model").write_bytes(spiece())
    model = fs.load(path)
    assert (model.mask_id, model.end_ids) == (14, (3,))
    assert model.encode("Hello (hello)").ids == (2, 6, 7, 4, 8, 9, 10, 17, 5)


def test_spiece_model_tokenises_as_the_published_converter(tmp_path):
    pytest.importorskip("google.protobuf")
    from transformers.convert_slow_tokenizer import AlbertConverter

    file = tmp_path / "spiece.model"
    file.write_bytes(spiece())
    slow = SimpleNamespace(
        vocab_file=str(file), keep_accents=False, do_lower_case=True, add_prefix_space=True
    )
    slow.convert_tokens_to_ids = [text for text, _ in PIECES].index
    expected = AlbertConverter(slow).converted()
    ours = source.tokenizer(tmp_path, FAMILIES["albert"])
    # Without ( and ), pieces of their own: transformers' converter puts a space behind these.
    for text in ("Hello hello", "29, 9, hellö 9,9", "  hello  ''lo``", "unknown ☃", ""):
        assert ours(text)["input_ids"] == expected.encode(text).ids, text


DAMAGED = {
    "empty": (b"", "unlike ALBERT's"),
    "an endless number": (b"\x0a" + b"\xff" * 40, "is not a SentencePiece model"),
    "of lengths alone": (b"\x0a" * 40, "is not a SentencePiece model"),
    "cut off": (spiece()[:200], "is not a SentencePiece model"),
    "merges": (spiece(kind=2), "is not a unigram model"),
    "another unknown piece": (spiece(unknown=0), "unlike ALBERT's"),
    "no [CLS]": (spiece([p for p in PIECES if p[0] != "[CLS]"]), r"does not contain \[CLS\]"),
    "no [MASK]": (spiece([p for p in PIECES if p[0] != "[MASK]"]), r"does not contain \[MASK\]"),
    "normaliser": (spiece(characters=b"\x04" + bytes(7)), "the tokenizer cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_spiece_model_is_refused(tmp_path, damage):
    content, words = DAMAGED[damage]
    (tmp_path / "spiece.model").write_bytes(content)
    with pytest.raises(fs.ModelError, match=words):
        source.tokenizer(tmp_path, FAMILIES["albert"])


# --- The mask where nothing names it, and where two things do ------------------------------------

NAMES = sorted(file.name.removesuffix(".json") for file in CONFIGS.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_a_familys_mask_id_belongs_to_the_published_vocabulary(name):
    raw = config_of(name)
    kind = family_of(raw["architectures"][0], name)
    assert kind.mask_id is None or raw["vocab_size"] in kind.mask_vocab
    assert raw.get("mask_token_id") in (None, kind.mask_id)
    config = kind.config(raw)
    assert config.eos_token_id == raw.get("eos_token_id")  # and not its class's own


def test_without_a_tokenizer_the_familys_mask_is_said_aloud(tmp_path):
    path = write("bert-base-uncased", tmp_path)
    with pytest.warns(UserWarning, match="mask id 103 is that of published BERT"):
        assert fs.load(path, check=False).mask_id == 103
    assert fs.load(path, mask_id=7, check=False).mask_id == 7


def test_a_familys_mask_is_refused_for_another_vocabulary(tmp_path):
    path = write("bert-base-uncased", tmp_path, vocab_size=1000)
    with pytest.raises(
        fs.ModelError, match=r"103 of published BERT.*30522 tokens, this vocabulary 1000"
    ):
        fs.load(path)
    words = Tokenizer(tokenizer_models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    silent = PreTrainedTokenizerFast(tokenizer_object=words)
    with pytest.raises(fs.ModelError, match="token 103 of its tokenizer is None.*mask_id="):
        fs.load(path, tokenizer=silent)


def test_a_familys_mask_is_taken_where_the_tokenizer_has_it(tmp_path):
    path = write("bert-base-uncased", tmp_path, vocab_size=1000)
    vocab = {f"t{i}": i for i in range(200) if i != 103} | {"[MASK]": 103}
    words = Tokenizer(tokenizer_models.WordLevel(vocab, unk_token="t0"))
    silent = PreTrainedTokenizerFast(tokenizer_object=words)
    assert fs.load(path, tokenizer=silent, check=False).mask_id == 103


@pytest.fixture(scope="module")
def llada(tmp_path_factory):
    """LLaDA-8B-Instruct's config; its mask is 126336."""
    return write("LLaDA-8B-Instruct", tmp_path_factory.mktemp("llada"))


def test_another_mask_than_the_configs_needs_a_word(llada, ended):
    words = r"mask_id = 5, but config.json names 126336.*override_mask=True"
    with pytest.raises(fs.ModelError, match=words):
        fs.load(llada, mask_id=5)
    with pytest.raises(fs.ModelError, match=words):
        outlined(ModelSpec.parse(f"{llada},mask_id=5"))
    assert fs.load(llada, check=False).mask_id == 126336
    assert fs.load(llada, mask_id=126336, check=False).mask_id == 126336
    assert fs.load(llada, mask_id=5, override_mask=True, check=False).mask_id == 5
    spec = ModelSpec.parse(f"{llada},mask_id=5,override_mask=true")
    assert fs.load(spec.text, check=False).mask_id == 5
    done = ended("trace", "--model", f"{llada},mask_id=5", "--prompt", "a")
    assert done.returncode == 3
    assert "names 126336 as the mask token" in done.stderr


def test_floatscope_json_may_overrule_the_mask(llada, tmp_path):
    path = write("LLaDA-8B-Instruct", tmp_path)
    (path / "floatscope.json").write_text('{"mask_id": 5}')
    with pytest.raises(fs.ModelError, match="names 126336"):
        fs.load(path)
    (path / "floatscope.json").write_text('{"mask_id": 5, "override_mask": true}')
    assert fs.load(path, check=False).mask_id == 5
    with pytest.raises(fs.ModelError, match="mask_id = 6"):  # the file's word is for its own mask
        fs.load(path, mask_id=6)
    with pytest.raises(fs.UsageError, match="override_mask = 'yes'.*true or false"):
        ModelSpec.parse("dir,mask_id=5,override_mask=yes")


# --- Chat templates ------------------------------------------------------------------------------

HEADER = "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
LLADA_TEMPLATE = (  # as LLaDA's: header, trimmed message, end of turn; an open turn of the assistant
    "{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    + HEADER
    + " + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
BASE = {"<|startoftext|>": 126080, "<|endoftext|>": 126081, "[CLS]": 126082, "<|mdm_mask|>": 126336}
CHAT = {"<|start_header_id|>": 126346, "<|end_header_id|>": 126347, "<|eot_id|>": 126348}
NAMED = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "cls_token": "[CLS]"}


def test_base_with_the_templates_of_its_sibling_is_prompted_as_text(llada):
    write_tokenizer(llada, BASE, chat_template=LLADA_TEMPLATE, **NAMED)
    with pytest.warns(UserWarning, match=r"writes <\|start_header_id\|>.*prompts are plain text"):
        model = fs.load(llada, check=False)
    assert not model.chat
    assert model.mask_id == 126336
    assert len(model.encode("Hi you").ids) == 6
    assert model.encode(fs.Prompt.plain("Hi you", chat=True)).regions[0] == "template"
    with pytest.warns(UserWarning, match="prompts are plain text"):
        assert not outlined(ModelSpec(str(llada))).chat


def test_instruct_is_prompted_as_chat_and_its_message_is_trimmed(llada):
    write_tokenizer(llada, BASE | CHAT, chat_template=LLADA_TEMPLATE, **NAMED)
    model = fs.load(llada, check=False)
    assert model.chat
    assert set(model.end_ids) == {126081, 126348}
    parts = (fs.Part("blank", " \n"), fs.Part("text", " Hi "), fs.Part("end", "you\n "))
    encoded = model.encode(fs.Prompt(parts))
    turns = [{"role": "user", "content": " \n Hi you\n "}]
    wanted = model.tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
    assert list(encoded.ids) == wanted
    assert encoded.names == ("template", "text", "end")
    assert encoded.ids.count(126346) == 2


def test_a_template_that_does_not_trim_keeps_the_message(llada):
    template = LLADA_TEMPLATE.replace(" | trim", "")
    write_tokenizer(llada, BASE | CHAT, chat_template=template, **NAMED)
    model = fs.load(llada, check=False)
    text = model.tokenizer.decode(list(model.encode(" Hi you\n").ids))
    assert "<|end_header_id|>\n\n Hi you\n<|eot_id|>" in text


def test_markers_of_a_branch_that_is_not_taken_do_not_count(llada):
    template = LLADA_TEMPLATE + "{% if tools %}<|no_such_token|>{% endif %}"
    write_tokenizer(llada, BASE | CHAT, chat_template=template, **NAMED)
    assert fs.load(llada, check=False).chat


def test_a2d_qwen3_is_prompted_without_thinking(tmp_path):
    path = write("A2D-Qwen3.from-code", tmp_path)
    ids = {"<|im_start|>": 151644, "<|im_end|>": 151645, "<|mask|>": 151669}
    template = (  # the parts of Qwen3's that a user's message meets
        "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content"
        " + '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
        "{%- if enable_thinking is defined and enable_thinking is false %}"
        "{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
    )
    write_tokenizer(path, ids, chat_template=template, mask_token="<|mask|>")
    model, outline = fs.load(path, check=False), outlined(ModelSpec(str(path)))
    assert model.mask_id == 151669
    encoded = model.encode("Hi")
    text = model.tokenizer.decode(list(encoded.ids))
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    from floatscope.sequences.prompt import encode

    assert encode(outline, "Hi") == encoded
    plain = replace(model, family=FAMILIES["qwen3"])
    assert "<think>" not in plain.tokenizer.decode(list(plain.encode("Hi").ids))


# --- config.json ---------------------------------------------------------------------------------


def test_sdar_reads_the_block_size_of_training_copies(tmp_path):
    model = fs.load(write("SDAR-4B-Chat.training", tmp_path / "training"), check=False)
    assert (model.block, model.mask_id) == (4, 151669)
    hub = write("SDAR-4B-Chat", tmp_path / "hub")
    with pytest.raises(fs.ModelError, match=r"block None.*needs block=N.*model card"):
        fs.load(hub)
    ids = {"<|im_end|>": 151645, "<|MASK|>": 151669}
    said = {str(i): {"content": token, "special": False} for token, i in ids.items()}
    write_tokenizer(hub, ids, mask_token="<|MASK|>", added_tokens_decoder=said)
    (hub / "special_tokens_map.json").write_text('{"mask_token": "<MASK>"}')  # as published
    assert fs.load(hub, block=8, check=False).mask_id == 151669
    write_tokenizer(hub, ids)
    with pytest.raises(fs.ModelError, match=r"names '<MASK>' as its mask, which is not in token"):
        fs.load(hub, block=8)  # and not with the id that transformers would make up


def test_sdar_moe_has_the_published_tensors():
    kind = family_of("SDARMoeForCausalLM", "")
    assert (kind.name, kind.direction, kind.shift, kind.mask_id) == (
        *("SDAR-MoE", "block-causal", 0, 151669),
    )
    with torch.device("meta"):
        net = kind.network_class(kind.config(config_of("SDAR-30B-A3B-Chat")))
    found = {name: tuple(parameter.shape) for name, parameter in net.named_parameters()}
    of_experts = [shape for name, shape in found.items() if ".experts." in name]
    assert sorted(set(of_experts)) == [(128, 1536, 2048), (128, 2048, 768)]
    # Every expert has three tensors in the files; a layer's gates and ups are one tensor here.
    assert len(found) - len(of_experts) + 48 * 128 * 3 == 18867


def test_sdar_moe_is_transformers_qwen3_moe(tmp_path):
    path = write("SDAR-30B-A3B-Chat", tmp_path, num_hidden_layers=2)
    model = fs.load(path, dtype="float64", block=4, mask_id=151669)
    raw = json.loads((path / "config.json").read_text())
    named = ("model_type", "auto_map", "architectures")
    config = Qwen3MoeConfig(**{key: value for key, value in raw.items() if key not in named})
    net = Qwen3MoeForCausalLM.from_pretrained(
        path, config=config, dtype=torch.float64, experts_implementation="eager"
    )
    ids = torch.randint(0, 151_000, (1, 11), generator=torch.Generator().manual_seed(4))
    place = torch.arange(11) // 4
    with torch.inference_mode():
        seen = (place[:, None] >= place)[None, None]
        logits = net.eval()(input_ids=ids, attention_mask=seen).logits
    torch.testing.assert_close(model.logits(ids), logits, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input_emb_norm", True),
        ("yarn", True),
        ("yarn_scale", 8.0),
        ("use_yarn", True),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0}),
        ("clip_qkv", 8.0),
    ],
)
def test_a_llada_fork_with_other_arithmetic_is_refused(tmp_path, field, value):
    raw = config_of("LLaDA-8B-Instruct") | {field: value}
    with pytest.raises(fs.ModelError, match=f"this LLaDA variant has {field} = "):
        FAMILIES["llada"].config(raw)


def test_fields_of_llada_forks_that_change_no_number_are_accepted():
    raw = config_of("LLaDA-8B-Instruct") | {"flash_attention": True, "flash_attn_varlen": True}
    config = FAMILIES["llada"].config(raw | {"yarn": False, "yarn_scale": None})
    assert config.hidden_size == 4096


@pytest.mark.parametrize(("full", "dtype"), [(True, torch.float32), (False, torch.bfloat16)])
def test_a_llada_fork_may_rotate_in_its_own_dtype(tmp_path, full, dtype):
    path = write("LLaDA-8B-Instruct", tmp_path, rope_full_precision=full)
    model = fs.load(path, dtype="bfloat16", check=False)
    cos, _ = model.net.model.rotary_emb(torch.zeros(1, 1, 1).bfloat16(), torch.arange(8)[None])
    assert cos.dtype == dtype

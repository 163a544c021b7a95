"""Damaged and dishonest checkpoints: whatever is wrong, the error is ours and says what, and nothing runs."""

import base64
import json
import shutil
import struct
from contextlib import suppress
from pathlib import Path

import pytest
import tiny_gguf
from hostile_checkpoints import SHAPE, attempt, checkpoint

import floatscope as fs
from floatscope.models import gguf_header, tiny
from floatscope.sequences import chat, chat_process, tokenizer_bounds

CANARY = "from pathlib import Path\nPath({mark!r}).touch()\nclass Evil:\n    pass\n"


@pytest.fixture
def copy_of(checkpoints, tmp_path):
    """A copy to spoil."""

    def copy(family):
        return Path(shutil.copytree(checkpoints[family], tmp_path / family))

    return copy


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf"), shape=tiny.Shape(**SHAPE))


def change(file, **fields):
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def refuse(words, path):
    with pytest.raises(fs.ModelError, match=words) as caught:
        fs.load(path)
    assert caught.value.remedy
    return str(caught.value)


# A config that lies


DEEP = json.loads("[" * 900 + "]" * 900)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads = 0: expected a whole number above 0"),
        ({"num_key_value_heads": 0}, "num_key_value_heads = 0: expected a whole number above 0"),
        ({"num_key_value_heads": 3}, "num_attention_heads = 4 cannot be divided into 3 heads"),
        ({"num_attention_heads": 5}, "hidden size .32. is not a multiple"),
        ({"head_dim": 7}, "rotary dimension|heads of 7 numbers"),
        ({"vocab_size": -5}, "vocab_size = -5: expected a whole number"),
        ({"vocab_size": 2**30}, "[0-9,]+ weights by its config, but"),
        ({"vocab_size": 2**62}, "vocab_size = 4611686018427387904: expected a whole number"),
        ({"num_hidden_layers": 10**6}, "1000000 layers in its config, but 30 tensors in its"),
        ({"hidden_size": {"a": 1}}, "hidden_size = {'a': 1}: expected a whole number"),
        ({"hidden_size": DEEP}, "config.json is nested deeper than 64 levels"),
        ({"rope_theta": DEEP}, "config.json is nested deeper than 64 levels"),
        ({"hidden_act": "evil"}, "cannot be read .KeyError: 'evil'"),
        ({"rms_norm_eps": float("nan")}, "self-check 'logits are finite' failed"),
        ({"eos_token_id": "a"}, "eos_token_id"),
        ({"eos_token_id": [[]]}, "eos_token_id"),
        ({"architectures": 3}, "architectures = 3, expected a list of names"),
        ({"architectures": [["LlamaForCausalLM"]]}, "expected a list of names"),
        ({"auto_map": [1]}, None),
        # Of transformers itself: these are not asked of a checkpoint, and do no harm.
        ({"num_labels": 10**9, "return_dict": False, "to_dict": 3, "_name_or_path": []}, None),
    ],
)
def test_a_config_that_cannot_be(copy_of, fields, words):
    path = copy_of("Llama")
    change(path / "config.json", **fields)
    if words is None:
        assert fs.load(path).n_layers == 3
    else:
        refuse(words, path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[]", "holds a list: expected a JSON object"),
        (b"", "is not JSON"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b'{"a":' * 100_000, "is nested too deeply"),
        ("folder", "is not a file"),
        ("config.json", "is not a file"),  # a link to itself
        ("/dev/zero", "is not a file"),
    ],
)
def test_a_config_that_is_none(copy_of, content, words):
    file = copy_of("Llama") / "config.json"
    file.unlink()
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content == "folder":
        file.mkdir()
    else:
        file.symlink_to(content)
    refuse(words, file.parent)


def test_an_end_token_of_another_file(copy_of):
    path = copy_of("Llama")
    (path / "generation_config.json").write_text('{"eos_token_id": "a"}')
    refuse("eos_token_id of generation_config.json is 'a': expected a token id", path)


@pytest.mark.parametrize("mask", ["a", [3], 1.5, True])
def test_a_mask_that_is_no_token(copy_of, mask):
    path = copy_of("LLaDA")
    change(path / "config.json", mask_token_id=mask)
    change(path / "tokenizer_config.json", mask_token=None, added_tokens_decoder={})
    with pytest.raises(fs.ModelError, match="mask id"):
        fs.load(path)


def test_factors_of_a_size_are_numbers(copy_of):
    path = copy_of("LLaDA")
    change(path / "config.json", mlp_hidden_size=None, mlp_ratio=10**12, d_model="ab")
    refuse("mlp_ratio = 1000000000000: expected a whole number", path)


def test_weights_cut_anywhere(copy_of):
    path = copy_of("Llama")
    file = path / "model.safetensors"
    whole = file.read_bytes()
    header = struct.unpack("<Q", whole[:8])[0]
    for cut in (0, 1, 7, 8, 9, header // 2, header + 8, len(whole) - 1):
        file.write_bytes(whole[:cut])
        refuse("cannot be read", path)
    file.write_bytes(struct.pack("<Q", 2**62) + whole[8:])
    refuse("cannot be read", path)


# A tokenizer that panics or does not end, a template that does not end


def replace(content, **pattern):
    return {"type": "Replace", "pattern": pattern, "content": content}


def in_sequence(name, *rules):
    return {"type": "Sequence", name: list(rules)}


def split(regex):
    return {
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": regex},
            "behavior": "Isolated",
            "invert": False,
        }
    }


TEN = replace("a" * 10, String="a")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
TWICE = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2,
    "pair": [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"],
    "special_tokens": {},
}
LONG_MAP = base64.b64encode(bytes(4) + b"a" * 2000 + b"\0").decode()


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"normalizer": in_sequence("normalizers", *[TEN] * 9)}, "encoding can make a text 2e.09"),
        ({"decoder": in_sequence("decoders", BYTES, *[TEN] * 9)}, "decoding can make a text 2e.09"),
        (
            {"normalizer": in_sequence("normalizers", *[replace("q" * 20, Regex="zq")] * 3)},
            r"encoding can make a text 1\.85e.04 times as long; at most 1000 is allowed",
        ),
        ({"pre_tokenizer": in_sequence("pretokenizers", *[BYTES] * 30)}, "text 1.07e.09 times"),
        ({"post_processor": in_sequence("processors", *[TWICE] * 20)}, "text 2.1e.06 times"),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 9999}}, "text 2e.04 times"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": LONG_MAP}}, "text 4e.03"),
        (
            {"normalizer": in_sequence("normalizers", *[{"type": "Lowercase"}] * 99)},
            "too many rules",
        ),
        # The child dies where this process died, of the memory that the map asks for.
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}}, "stopped"),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "cannot be read .PanicExc"),
        (split("("), "cannot be read .Exception"),
        (split("(a+)+$"), "cannot be read .PanicException: Onig: .*retry-limit"),
        ({"normalizer": 3, "model": []}, "the tokenizer cannot be read"),
    ],
)
def test_a_tokenizer_that_is_not_bounded_is_refused(copy_of, part, words):
    path = copy_of("Llama")
    change(path / "tokenizer.json", **part)
    refuse(words, path)


def test_a_tokenizer_with_a_huge_token_is_refused(copy_of):
    path = copy_of("Llama")
    model = json.loads((path / "tokenizer.json").read_text())["model"]
    change(path / "tokenizer.json", model={**model, "vocab": {**model["vocab"], "a" * 20_000: 263}})
    refuse("a token of 20000 characters", path)


def test_a_tokenizer_of_other_files_is_bounded_too(copy_of, monkeypatch):
    path = copy_of("Dream")
    assert not (path / "tokenizer.json").exists()
    monkeypatch.setattr(tokenizer_bounds, "GROWTH", 1)
    refuse("encoding can make a text [24] times as long; at most 1 is allowed", path)


def test_a_tokenizer_under_another_name_is_refused(copy_of):
    """transformers prefers the file that this field names, by its own version."""
    path = copy_of("Llama")
    shutil.copy(path / "tokenizer.json", path / "tokenizer.4.0.0.json")
    names = ["tokenizer.json", "tokenizer.4.0.0.json"]
    change(path / "tokenizer_config.json", fast_tokenizer_files=names)
    refuse("names other tokenizer files", path)
    file = path / "tokenizer_config.json"
    file.write_text(file.read_text().replace("fast_tokenizer_files", r"fast\u005ftokenizer_files"))
    refuse("names other tokenizer files", path)


def test_only_a_tokenizer_with_unknown_rules_is_tried_and_once(copy_of, monkeypatch):
    asked = []
    monkeypatch.setattr(tokenizer_bounds, "_passed", set())
    monkeypatch.setattr(tokenizer_bounds, "ask", lambda it: asked.append(it) or chat.ask(it))
    path = copy_of("Llama")
    for regex in tokenizer_bounds.PUBLISHED:
        change(path / "tokenizer.json", **split(regex))
        fs.load(path, check=False)
    assert not asked
    change(path / "tokenizer.json", **split(r"\w+|\W"))
    for _ in range(2):
        fs.load(path, check=False)
    assert len(asked) == 1
    texts = asked[0]["tokenizer"]["texts"]
    assert {len(text) for text in texts} == {tokenizer_bounds.LENGTH + 1}
    assert "w" * tokenizer_bounds.LENGTH + "§" in texts


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "stopped",
        ),
        ("{{ 'a'.ljust(9999999999) }}", "MemoryError"),
        ("{{ 'a' * 2000000 }}", "2000000 characters, expected 1000000 at most"),
        ("{% if", "TemplateSyntaxError"),
        ("{{ raise_exception('not so') }}", "TemplateError: not so"),
        ("no message", "shows a message 0 times: expected once"),
        ("{{ messages[0].content * 2 }}", "shows a message 2 times"),
    ],
)
def test_a_chat_template_is_bounded(llama, monkeypatch, template, words):
    monkeypatch.setattr(llama, "chat", True)
    monkeypatch.setattr(llama.tokenizer, "chat_template", template)
    with pytest.raises(fs.ModelError, match=words) as caught:
        llama.encode("Hello")
    assert "chat=False" in caught.value.remedy


def test_a_chat_template_is_applied_as_transformers_does(llama, monkeypatch):
    """Also after one that had to be stopped, and with what comes from the tokenizer."""
    template = (
        "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | tojson }}{{ m.content }}\n"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    monkeypatch.setattr(llama.tokenizer, "chat_template", template)
    turns = [
        {"role": "user", "content": 'Ünï "漢"\n<b>'},
        {"role": "assistant", "content": "It is"},
    ]
    for answer, some in ((True, turns[:1]), (True, turns), (False, turns)):
        expected = llama.tokenizer.apply_chat_template(
            some,
            tokenize=False,
            add_generation_prompt=answer,
            continue_final_message=not answer,
        )
        assert chat.rendered(llama.tokenizer, some, "tiny", answer=answer) == expected


def test_the_process_for_templates_is_started_again(llama, monkeypatch):
    monkeypatch.setattr(llama.tokenizer, "chat_template", "{{ messages[0].content }}")
    turn = [{"role": "user", "content": "Hello"}]
    assert chat.rendered(llama.tokenizer, turn, "tiny") == "Hello"
    chat._child._process.kill()
    with pytest.raises(fs.ModelError, match="was stopped"):
        chat.rendered(llama.tokenizer, turn, "tiny")
    assert chat.rendered(llama.tokenizer, turn, "tiny") == "Hello"
    assert chat_process.answer(b"{")[1].startswith("JSONDecodeError")


# GGUF


def test_a_gguf_file_loads_and_decodes(gguf):
    assert attempt(gguf.parent) == ("works", "")
    held = gguf_header.read(gguf).tensor_counts
    assert (len(held.tensors), held.weights) == (
        21,
        sum(p.numel() for p in fs.load(gguf).net.parameters()),
    )


def test_a_gguf_file_cut_anywhere(gguf, tmp_path):
    """In its header and in its tensors; loading says what the header says."""
    whole = gguf.read_bytes()
    file = tmp_path / "cut.gguf"
    for cut in [*range(1, 200, 7), *range(200, len(whole), 1997), len(whole) - 1]:
        file.write_bytes(whole[:cut])
        with pytest.raises(fs.ModelError, match=r"cut\.gguf"):
            gguf_header.read(file)
    refuse("tensor .* ends after the file does", file)
    file.write_bytes(b"")
    refuse("header cannot be read", file)


def test_a_gguf_header_with_flipped_bits(gguf, tmp_path):
    """Each of its counts and lengths, at its highest bits: 2^60 elements are never walked."""
    whole = gguf.read_bytes()
    file = tmp_path / "flipped.gguf"
    for at in range(0, 700, 11):
        content = bytearray(whole)
        content[at] ^= 0x40
        file.write_bytes(content)
        with suppress(fs.ModelError):  # or the damage is in a name or a number
            gguf_header.read(file)
    for name, expected in {
        "llama.block_count": "1000000 layers in its config, but 21 tensors",
        "llama.embedding_length": "[0-9,]+ weights by its config",
        "llama.attention.head_count": "cannot be read .*hidden size",
    }.items():
        content = bytearray(whole)
        place = content.index(name.encode()) + len(name) + 4
        content[place : place + 4] = struct.pack("<I", 10**6)
        file.write_bytes(content)
        refuse(expected, file)


def test_a_gguf_file_whose_tensors_do_not_fit(gguf, tmp_path):
    """Two heads by its tensors, one by its header: transformers loads it without a word."""
    content = bytearray(gguf.read_bytes())
    name = b"llama.attention.head_count"
    place = content.index(name) + len(name) + 4
    content[place : place + 4] = struct.pack("<I", 1)
    file = tmp_path / "other.gguf"
    file.write_bytes(content)
    assert "expected (16, 16)" in refuse("4 tensors mis-shaped: .*k_proj.weight is .8, 16.", file)


# Canaries: the ways in that are not a directory's tokenizer or model (those are in test_checkpoints)


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """Puts a canary and what points to it into a folder; on "y" transformers would run the file."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    mark = tmp_path / "ran"
    names = ("AutoConfig", "AutoModel", "AutoModelForCausalLM")
    config = {**dict.fromkeys(names, "evil.Evil"), "AutoTokenizer": ["evil.Evil", "evil.Evil"]}

    def put(folder):
        (folder / "evil.py").write_text(CANARY.format(mark=str(mark)))
        for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
            file = folder / name
            known = json.loads(file.read_text()) if file.exists() else {}
            more = {"custom_generate": "evil.py", "model_type": "evil"}
            file.write_text(json.dumps({**more, **known, "auto_map": config}))
        return mark

    return put


@pytest.mark.parametrize("beside", ["config.json", "tokenizer_config.json", "both"])
def test_no_way_in_beside_a_gguf_file(gguf, tmp_path, trap, beside):
    path = Path(shutil.copy(gguf, tmp_path / "model.gguf"))
    mark = trap(tmp_path)
    if beside != "both":
        keep = {beside, "evil.py", path.name}
        for file in tmp_path.iterdir():
            if file.name not in keep:
                file.unlink()
    with suppress(fs.ModelError):  # or it loads, without those files
        fs.load(path)
    assert not mark.exists()


def test_no_way_in_through_a_config(copy_of, trap):
    """A config class of its own, under a model type that transformers does not know."""
    path = copy_of("Llama")
    change(path / "config.json", model_type="evil")
    mark = trap(path)
    with pytest.raises(fs.ModelError, match="the class evil.Evil and a mask"):
        fs.load(path)
    assert fs.load(path, direction="causal").family.name == "Llama"
    assert not mark.exists()


def test_no_way_in_through_the_harness(copy_of, trap):
    from lm_eval.api.registry import get_model

    from floatscope.harness import FloatscopeLM

    path = copy_of("LLaDA")
    mark = trap(path)
    assert FloatscopeLM(path).model.family.name == "LLaDA"
    with pytest.raises(fs.UsageError, match="takes no trust_remote_code"):
        get_model("floatscope").create_from_arg_string(f"model={path},trust_remote_code=True")
    assert not mark.exists()


# From a seed


def test_hostile_checkpoints_from_seeds(tmp_path):
    """Anything but a working model or one of our own errors is raised by `attempt`."""
    outcomes = set()
    for seed in range(25):
        said = checkpoint(seed, tmp_path / str(seed))
        try:
            outcomes.add(attempt(tmp_path / str(seed))[0])
        except BaseException as error:
            pytest.fail(f"seed {seed}, {said}: {error!r}")
    assert outcomes >= {"works", "ModelError"}


def test_seeds_draw_every_kind_of_change(tmp_path):
    drawn = "\n".join(checkpoint(seed, tmp_path / str(seed)) for seed in range(150))
    for words in (
        "tokenizer bomb",
        "adapter beside",
        "other weights",
        "layer types",
        "chat template",
    ):
        assert words in drawn
    assert "mask is an end token" in drawn
    assert "weights times" in drawn


def test_an_attempt_notices(tmp_path, monkeypatch):
    """The check itself: another library's exception, and a canary that was touched."""
    path = tiny.write("Llama", tmp_path / "m")
    assert attempt(path) == ("works", "")
    (path / "ran").touch()
    with pytest.raises(AssertionError, match="code of the checkpoint ran"):
        attempt(path)
    monkeypatch.setattr(fs.Model, "generate", lambda *_: {}["x"])
    with pytest.raises(KeyError):
        attempt(path)

"""Prompts: exact spans, and text that stays text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import FAMILIES

import floatscope as fs
from floatscope.sequences.token_classes import token_class

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(question=TEXT.filter(str.strip), passages=st.lists(TEXT, max_size=4))
def test_a_regions_tokens_are_its_text(models, question, passages):
    prompt = fs.Prompt.rag(question, passages)
    for name in ("LLaDA", "Llama"):
        model = models[name]
        encoded = model.encode(prompt)
        for number, text in enumerate(passages, 1):
            ids = [encoded.ids[i] for i in encoded.positions(f"passage {number}")]
            assert model.tokenizer.decode(ids) == " " + text
        ids = [encoded.ids[i] for i in encoded.positions("question")]
        assert model.tokenizer.decode(ids) == " " + question


@pytest.mark.parametrize("family", FAMILIES)
def test_data_never_becomes_special_tokens(models, family):
    model = models[family]
    encoded = model.encode(fs.Prompt.plain("a <|mask|> b <|end|>", chat=False))
    body = [i for i, r in zip(encoded.ids, encoded.regions, strict=True) if r == "prompt"]
    assert not set(body) & model.special_ids
    assert model.tokenizer.decode(body) == "a <|mask|> b <|end|>"


def test_closed_book_keeps_no_scaffolding():
    assert fs.Prompt.rag("Who?", instruction="Say.").text == "Say.\n\nQuestion: Who?\nAnswer:"
    assert "Passage 2: B" in fs.Prompt.rag("Who?", ["A", "B"]).text


def test_chat_templates(checkpoints, tmp_path):
    model = fs.load(checkpoints["Llama"], check=False)
    with pytest.raises(fs.UsageError, match="no chat template"):
        model.encode(fs.Prompt.plain("Hi", chat=True))
    model.tokenizer.chat_template = (
        "{% for m in messages %}<|begin|>{{ m['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}A:{% endif %}"
    )
    model.chat = True
    encoded = model.encode("Hi <|mask|>")
    assert encoded.ids[0] == 256
    assert encoded.regions[0] == "template"
    assert model.tokenizer.decode(list(encoded.ids)) == "<|begin|>Hi <|mask|><|end|>A:"
    assert 259 not in encoded.ids
    assert model.encode(fs.Prompt.plain("Hi", chat=False)).regions == ("prompt", "prompt")


def test_invalid_prompts_are_refused():
    with pytest.raises(fs.UsageError, match="question is empty"):
        fs.Prompt.rag(" ", ["a"])
    with pytest.raises(fs.UsageError, match="gold = 2, but there are 2 passages"):
        fs.Prompt.rag("Who?", ["a", "b"], gold=2)


def test_reserved_names():
    for name in ("masked", "revealed", "answer", ""):
        with pytest.raises(fs.UsageError, match="cannot be called"):
            fs.Part(name, "text")


def test_ids_need_no_tokenizer(checkpoints):
    model = fs.load(checkpoints["Llama"], check=False)
    model.tokenizer = None
    trace = model.trace([1, 2, 3], fs.Autoregressive(length=3))
    assert trace.data["final_token"].values[0] == "<1>"
    assert trace.data["token"].values[0].tolist() == ["<1>", "<2>", "<3>", "", "", ""]
    assert trace.raw_text == " ".join(map(str, trace.canvas.values[-1, 3:]))
    with pytest.raises(fs.UsageError, match="has no tokenizer"):
        model.trace("Hi")


def test_token_classes(llada):
    for text, token, region, expected in [
        (" the", 5, "prompt", "function"),
        (" Paris", 5, "prompt", "content"),
        (".", 5, "prompt", "punctuation"),
        ("\n\n", 5, "template", "whitespace"),
        ("Question", 5, "template", "template"),
        ("", llada.mask_id, "answer", "mask"),
        ("", 257, "prompt", "special"),
        ("", -1, "answer", "absent"),
        ("€", 5, "prompt", "punctuation"),
    ]:
        assert token_class(text, token, region, llada) == expected


def test_a_text_in_place_of_parts_is_a_plain_prompt():
    assert fs.Prompt("hello", chat=False) == fs.Prompt.plain("hello", chat=False)
    with pytest.raises(fs.UsageError, match="expected text, or Part objects"):
        fs.Prompt(["hello"])

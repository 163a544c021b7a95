"""Templates: the text they write, and spans that hold for every kind of tokenizer.

No checkpoint of LLaDA, Dream or Llama 2 is at hand here. Their tokenizers are stood for by ones of
the same make (pre-tokenizer, normalizer, decoder, byte fallback), trained on the spot.
"""

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import FAMILIES
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers import models as bpe
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

import floatscope as fs
from floatscope.models import FAMILIES as REGISTERED
from floatscope.models import source, tiny
from floatscope.tasks import prompt_of
from floatscope.tasks.conditions import Condition
from floatscope.tasks.readers import read_records
from floatscope.tasks.record import Passage, Record, from_world, is_blank
from floatscope.tasks.templates import PlainTemplate, WorldTemplate
from floatscope.tasks.world import LEVELS, World
from floatscope.tasks.world_questions import world_records

DATA = Path(__file__).parent / "data"
ADA = Record(
    "ada",
    "Where was Ada born?",
    ("London",),
    (Passage("Charles made engines.", "Babbage"), Passage("Ada was born in London.", gold=True)),
)
FIRST = Condition(question_first=True)
CLOSED = Condition(closed_book=True)


def test_plain_template_writes_its_layout():
    prompt = PlainTemplate(instruction="Read and answer.").prompt(ADA)
    assert prompt.text == (
        "Read and answer.\n\nPassage 1: (Title: Babbage) Charles made engines."
        "\n\nPassage 2: Ada was born in London.\n\nQuestion: Where was Ada born?\nAnswer:"
    )
    assert prompt.gold == "passage 2"
    named = {part.name: part.text for part in prompt.parts}
    assert named["passage 1"] == " (Title: Babbage) Charles made engines."


def test_plain_template_can_put_the_question_first():
    prompt = PlainTemplate(instruction="Read.").prompt(ADA, FIRST)
    assert prompt.text == (
        "Read.\n\nQuestion: Where was Ada born?\n\nPassage 1: (Title: Babbage) Charles made engines."
        "\n\nPassage 2: Ada was born in London.\nAnswer:"
    )
    bare = PlainTemplate(instruction="").prompt(ADA, FIRST)
    assert bare.text == prompt.text.removeprefix("Read.\n\n")
    for one in (PlainTemplate(), WorldTemplate()):
        before, after = one.prompt(ADA), one.prompt(ADA, FIRST)
        words = {p for p in before.parts if p.name != "template"}
        assert words == {p for p in after.parts if p.name != "template"}
        names = [p.name for p in after.parts if p.name != "template"]
        assert names.index("question") < names.index("passage 1")


def test_closed_book_has_no_passage_labels():
    template = PlainTemplate(instruction="Use the passages.", closed_instruction="Answer.")
    expected = "Answer.\n\nQuestion: Where was Ada born?\nAnswer:"
    assert template.prompt(ADA, CLOSED).text == expected
    assert template.prompt(ADA.closed_book()).text == expected
    assert template.prompt(ADA, CLOSED).gold is None
    world = WorldTemplate().prompt(ADA, CLOSED)
    assert world.text == "Question: Where was Ada born?\nAnswer:"
    with pytest.raises(fs.UsageError, match="'ada' has no passages, and 'passages=2' needs"):
        template.prompt(ADA.closed_book(), Condition(passages=2))


def test_the_chat_option_reaches_the_prompt():
    assert PlainTemplate().prompt(ADA).chat is None
    assert PlainTemplate(chat=False).prompt(ADA, FIRST).chat is False


@pytest.mark.parametrize("level", LEVELS)
def test_world_template_writes_the_layout_of_training(level):
    noise = ["The Danube is long."]
    for example in World().examples(LEVELS[level], 3, noise=noise):
        record = from_world(example, "x")
        assert WorldTemplate().prompt(record) == prompt_of(example)
        assert WorldTemplate().prompt(record, CLOSED) == prompt_of(example.closed_book())


def test_the_worlds_question_first():
    text = WorldTemplate().prompt(ADA.with_passages(ADA.passages[1:]), FIRST).text
    assert text == (
        "Question: Where was Ada born?\nPassages:\n[1] Ada was born in London.\nAnswer:"
    )


# --- Spans -------------------------------------------------------------------------------------

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [(Path(__file__).parent / "data" / "nq-multidoc.jsonl").read_text()]


def byte_level(split=None, normalizer=None):
    """Bytes as an alphabet: nothing is unknown."""
    tokenizer = Tokenizer(bpe.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), last])
        if split
        else last
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def sentencepiece():
    """Llama 2's make: spaces become ▁, one is put in front, what is unknown falls back to bytes."""
    tokenizer = Tokenizer(bpe.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    specials = ["<unk>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = BpeTrainer(vocab_size=900, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator([CORPUS[0][:20000]], trainer)
    # The trainer marks the bytes as special; in Llama 2 they are ordinary tokens.
    config = json.loads(tokenizer.to_str())
    config["added_tokens"] = config["added_tokens"][:1]
    config["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    return Tokenizer.from_str(json.dumps(config))


def exactly(text):
    return text


def nfc(text):
    return unicodedata.normalize("NFC", text)


def no_low_line(text):
    return text.replace("▁", " ")


def without_smollms_missing_bytes(text):
    """SmolLM2 has no token for 21 bytes and drops them: six control characters, and the first byte
    of U+40000 to U+BFFFF, where no character is assigned; the other 13 never occur in UTF-8."""
    missing = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}
    return bytes(b for b in text.encode() if b not in missing).decode(errors="replace")


# What a tokenizer makes of a text: its tokens, decoded, give this. Only two of these lose anything.
MADE = {
    "LLaDA-like byte-level BPE": (lambda: byte_level(), exactly),
    "Llama-3-like byte-level BPE": (
        lambda: byte_level(QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")),
        exactly,
    ),
    "Qwen- and Dream-like byte-level BPE": (lambda: byte_level(QWEN, normalizers.NFC()), nfc),
    "Llama-2-like SentencePiece": (sentencepiece, no_low_line),
}


@pytest.fixture(scope="module")
def carrier(tmp_path_factory):
    """A model with room for any of the vocabularies; its tokenizer is exchanged."""
    shape = tiny.Shape(layers=1, width=8, heads=1, kv_heads=1, ffn=8, vocab=60_000)
    return fs.load(tiny.write("Llama", tmp_path_factory.mktemp("carrier"), shape), check=False)


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=40)
FILLED = TEXT.filter(lambda text: not is_blank(text))
# Accents apart, signs with a canonical twin, SentencePiece's space, rare bytes, spaces, markup.
HARD = ["e\u0301", "\u212b \u2126", "▁a▁", "\x06.", "\U00050000", "  a  .\r\n\tb ", "👩\u200d🚀"]
HARD += ["<|mask|> <|endoftext|> </s> <0x41> [MASK]", "do n't , no", "a\x00", "\ufeffa", "日本語"]


def check_spans(carrier, tokenizer, expected):
    carrier.tokenizer = tokenizer

    @settings(max_examples=40, deadline=None)
    @given(
        question=FILLED,
        passages=st.lists(st.builds(Passage, FILLED, TEXT | st.just("")), min_size=1, max_size=3),
        condition=st.sampled_from([Condition(), FIRST, CLOSED]),
        template=st.sampled_from([PlainTemplate(chat=False), WorldTemplate()]),
    )
    def check(question, passages, condition, template):
        prompt = template.prompt(Record("x", question, ("a",), tuple(passages)), condition)
        encoded = carrier.encode(prompt)
        for part in prompt.parts:
            if part.name == "template":
                continue
            ids = [encoded.ids[i] for i in encoded.positions(part.name)]
            assert tokenizer.decode(ids) == expected(part.text), part
            alone = tokenizer(part.text, add_special_tokens=False, split_special_tokens=True)
            assert ids == alone["input_ids"]

    for text in HARD:
        check.hypothesis.inner_test(text, [Passage(text, text)], Condition(), PlainTemplate())
    check()


@pytest.mark.parametrize("kind", MADE)
def test_spans_decode_to_their_text(carrier, kind):
    make, expected = MADE[kind]
    check_spans(carrier, PreTrainedTokenizerFast(tokenizer_object=make()), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_spans_of_the_families(carrier, models, family):
    tokenizer = models[family].tokenizer
    normalizer = tokenizer.backend_tokenizer.normalizer
    expected = nfc if isinstance(normalizer, normalizers.NFC) else exactly
    assert (expected is nfc) == (family == "Dream"), "Dream's is read by Qwen2's class"
    check_spans(carrier, tokenizer, expected)


@pytest.mark.parametrize("name", ["pair/mdm", "pair/arm"])
def test_spans_of_the_pair(carrier, name):
    check_spans(carrier, fs.load(name, check=False).tokenizer, exactly)


@pytest.mark.real
def test_spans_of_smollm(carrier):
    file = source.locate("twin/parent", None)
    tokenizer = source.tokenizer(file, REGISTERED["llama"])
    check_spans(carrier, tokenizer, without_smollms_missing_bytes)
    records = read_records(DATA / "nq-multidoc.jsonl").records
    texts = [p.text for r in records for p in r.passages]
    assert all(without_smollms_missing_bytes(text) == text for text in texts)


def test_spans_through_a_chat_template(carrier):
    """The parts keep their tokens; what the chat template adds is `template`."""
    carrier.tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(QWEN),
        clean_up_tokenization_spaces=False,
        chat_template="{% for m in messages %}<user>{{ m['content'] }}</user>{% endfor %}"
        "{% if add_generation_prompt %}<model>{% endif %}",
    )
    prompt = PlainTemplate().prompt(ADA, FIRST)
    plain = carrier.encode(prompt)
    carrier.chat = True
    chat = carrier.encode(prompt)
    carrier.chat = False
    decode = carrier.tokenizer.decode
    assert decode(list(chat.ids)) == f"<user>{prompt.text}</user><model>"
    for name in ("instruction", "question", "passage 1", "passage 2"):
        ids = [chat.ids[i] for i in chat.positions(name)]
        assert ids == [plain.ids[i] for i in plain.positions(name)]
    assert chat.regions[0] == chat.regions[-1] == "template"


def test_sentencepiece_puts_a_space_before_every_part(carrier):
    """Parts are tokenised on their own, so each gets one: the joined text has more spaces."""
    carrier.tokenizer = PreTrainedTokenizerFast(tokenizer_object=sentencepiece())
    prompt = PlainTemplate(chat=False).prompt(ADA)
    joined = carrier.tokenizer.decode(list(carrier.encode(prompt).ids))
    assert joined == " ".join(part.text for part in prompt.parts)
    assert joined != prompt.text


@pytest.mark.parametrize("name", ["nq-open-oracle.jsonl", "xquad.json", "kv-retrieval.jsonl"])
def test_parts_of_real_records_join_to_the_prompt_text(models, name):
    for record in read_records(DATA / name, limit=3).records:
        prompt = PlainTemplate().prompt(record)
        encoded = models["LLaDA"].encode(prompt)
        assert encoded.gold == f"passage {record.gold + 1}"
        assert models["LLaDA"].tokenizer.decode(list(encoded.ids)) == prompt.text


def test_a_world_record_can_be_asked(models):
    (record,) = world_records("world:three", 1)
    encoded = models["Llama"].encode(WorldTemplate().prompt(record))
    assert encoded.names[:3] == ("instruction", "template", "passage 1")

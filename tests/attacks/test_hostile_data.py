"""Files of questions made to hurt: nothing is lost without a word, and memory follows one record."""

import gzip
import json
import tracemalloc

import pytest

import floatscope as fs
from floatscope.cli.console import SafeConsole, spelled
from floatscope.cli.inputs import texts_of
from floatscope.stats.frequencies import corpus_texts
from floatscope.tasks import stream
from floatscope.tasks.readers import read_records
from floatscope.tasks.record import Passage, Record

GOOD = '{"id": "%s", "question": "Who?", "answers": ["me"], "passages": ["It was me."]}'
BODY = '"question": "Who?", "answers": ["me"], "passages": ["It was me."]'
LINES = {
    "a number without end": ("{" + BODY + ', "n": ' + "9" * 5000 + "}", "more than 4300 digits"),
    "a deep list": ("{" + BODY + ', "n": ' + "[" * 100_000 + "}", "nested too deeply"),
    "a deep question": ('{"question": ' + "[" * 700 + "]" * 700 + "}", "where a string is exp"),
    "a field twice": ("{" + BODY + ', "question": "Where?"}', "the field 'question' twice"),
    "twice, deep inside": ("{" + BODY + ', "x": [{"a": 1, "a": 2}]}', "the field 'a' twice"),
    "half a character": ("{" + BODY + ', "x": "\\udc00"}', "unpaired surrogate"),
    "half, in a name": ("{" + BODY + ', "\\ud800": 1}', "unpaired surrogate"),
    "NUL": ('{"question": "Wh\\u0000o?", "answers": ["me"]}', "question contains a NUL"),
    "a raw NUL": ('{"question": "Wh\0o?", "answers": ["me"]}', "is not JSON"),
    "no number": ('{"question": "Who?", "answers": ["me"], "id": NaN}', "is nan, where"),
    "infinity": ('{"question": 1e999, "answers": ["me"]}', "is inf, where"),
    "a mark": ("\ufeff{" + BODY + "}", "is not JSON: Unexpected UTF-8 BOM"),
    "nothing to see": (
        '{"question": "\u200b\u2060\xa0\u3164\ufe0f", "answers": ["me"]}',
        "is empty",
    ),
    "no answer to see": (
        '{"question": "Who?", "answers": ["\u200d\ufeff"]}',
        r"answers\[0\] is em",
    ),
    "of another schema": (
        '{"question": "Who?", "answers": ["I"], "ctxs": [{"text": "I."}]}',
        "ctxs",
    ),
    "another's name": ('{"question": "Who?", "answers": ["I"], "context": "I."}', "context is not"),
}


@pytest.mark.parametrize("what", LINES)
def test_a_bad_line_is_named_and_costs_no_other(tmp_path, what):
    line, says = LINES[what]
    path = tmp_path / "q.jsonl"
    path.write_bytes("\n".join([GOOD % 1, line, GOOD % 2, GOOD % 3]).encode())
    with pytest.raises(fs.UsageError, match=rf"line 2: .*{says}") as caught:
        read_records(path)
    assert len(str(caught.value)) < 1000 and "--skip-bad" in caught.value.remedy
    read = read_records(path, skip_bad=True)
    assert [record.id for record in read.records] == ["1", "2", "3"] and len(read.bad) == 1


def test_a_bad_item_of_an_array_costs_no_other(tmp_path):
    path = tmp_path / "q.json"
    twice = "{" + BODY + ', "question": "Where?"}'
    path.write_text(f"[{GOOD % 1}, {twice}, {GOOD % 2}]")
    read = read_records(path, skip_bad=True)
    assert len(read.records) == 2 and "item 2: has the field" in str(read.bad[0])
    path.write_text(f"[1]\n{GOOD % 1}\n{GOOD % 2}\n")  # lines, the first of them an array
    read = read_records(path, skip_bad=True)
    assert len(read.records) == 2 and "line 1: is a list" in str(read.bad[0])


def test_a_field_twice_in_squad(tmp_path):
    path = tmp_path / "squad.json"
    question = '{"id": "%s", "question": "Who?", "answers": [{"text": "me"}]}'
    twice = question.replace('"id"', '"id": "z", "id"')
    good = f'{{"context": "me", "qas": [{question % 1}, {twice % 2}]}}'
    bad = f'{{"context": "me", "context": "you", "qas": [{question % 3}]}}'
    path.write_text(f'{{"data": [{{"paragraphs": [{good}, {bad}]}}]}}')
    read = read_records(path, skip_bad=True)
    assert [record.id for record in read.records] == ["1"]
    assert [str(b).split(", ")[1].split(":")[0] for b in read.bad] == [
        "data[0].paragraphs[0].qas[1]",
        "data[0].paragraphs[1]",
    ]


def test_skipping_is_not_advised_where_it_cannot_help(tmp_path):
    path = tmp_path / "q.jsonl"
    for content in (b"{\n{", b'[{"question": "x"', b'{"question": ""}'):
        path.write_bytes(content)
        with pytest.raises(fs.UsageError) as caught:
            read_records(path, skip_bad=True)
        assert "skip" not in caught.value.remedy


@pytest.mark.parametrize(
    "text", ["", " \n", "\u200b", "\ufeff\u2060", "\xa0\u2003", "\u3164\u2800"]
)
def test_what_cannot_be_seen_is_empty(text):
    with pytest.raises(fs.UsageError, match="passage is empty"):
        Passage(text)
    with pytest.raises(fs.UsageError, match="question is empty"):
        Record("x", text, ("a",))
    with pytest.raises(fs.UsageError, match="no answer"):
        Record("x", "Who?", ("a", text))
    assert Passage(f"{text}é").text


# Sizes


def test_a_line_without_end_is_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "RECORD", 1 << 20)
    path = tmp_path / "q.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write((GOOD % 1).encode() + b'\n{"question": "')
        for _ in range(48):
            file.write(b"x" * (1 << 20))
        file.write(b'"}\n' + (GOOD % 2).encode())
    tracemalloc.start()
    read = read_records(path, skip_bad=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(read.records) == 2 and str(read.bad[0]).endswith("line 2: is longer than 1 MB")
    assert peak < 16 << 20


@pytest.mark.parametrize("document", [False, True])
def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch, document):
    monkeypatch.setattr(stream, "FREE", 1 << 20)
    path = tmp_path / "q.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"[" if document else b"")
        for number in range(60):
            end = (b",", b"") if document else (b"\n", b"\n")  # a document, all on one line
            file.write((GOOD % number).encode() + end[0] + b" " * (1 << 20) + end[1])
        file.write(b"1]" if document else b"")
    tracemalloc.start()
    with pytest.raises(fs.UsageError, match="unpacks to more than 200 times its size"):
        read_records(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20


def test_a_document_has_a_limit_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "DOCUMENT", 1 << 20)
    path = tmp_path / "q.json"
    path.write_text("[" + (GOOD % 1) + " " * (1 << 20) + "]")
    with pytest.raises(fs.UsageError, match="JSON lines"):
        read_records(path)


def test_a_document_on_one_line_is_no_record(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "RECORD", 100)
    question = {"id": "1", "question": "Who?", "answers": [{"text": "me"}]}
    document = {"data": [{"paragraphs": [{"context": "me " * 99, "qas": [question]}]}]}
    path = tmp_path / "q.json"
    path.write_text(json.dumps(document))
    assert len(read_records(path).records) == 1


def test_only_what_is_asked_for_is_read(tmp_path):
    path = tmp_path / "q.jsonl"
    lines = [GOOD % number for number in range(20_000)]
    path.write_bytes("\n".join(lines).encode() + b"\n\xff")
    tracemalloc.start()
    assert len(read_records(path, limit=2).records) == 2  # the fault at the end is not met
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20 < path.stat().st_size


# Other readers of lines


def test_prompts_are_read_like_records(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a\u2028b\x85c"}\n{"prompt": "d"}\n', encoding="utf-8")
    assert texts_of(None, path, None) == ["a\u2028b\x85c", "d"]
    assert texts_of(None, path, 1) == ["a\u2028b\x85c"]
    for line in ("[" * 100_000, "9" * 5000, '{"prompt": "\\ud800"}', '{"prompt": 1}', "[]", "{}"):
        path.write_text('{"prompt": "a"}\n' + line)
        with pytest.raises(fs.UsageError, match="line 2"):
            texts_of(None, path, None)


def test_a_corpus_line_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "c.jsonl"
    for line in ("[" * 100_000, "9" * 5000, '{"text": "\\ud800"}'):
        path.write_text('{"text": "a"}\n' + line)
        with pytest.raises(fs.UsageError, match="line 2"):
            list(corpus_texts([path]))
    damaged = bytearray(gzip.compress(b"text " * 1000))
    damaged[20:30] = b"\xff" * 10
    (tmp_path / "c.txt.gz").write_bytes(damaged)
    with pytest.raises(fs.UsageError, match="cannot be read"):
        list(corpus_texts([tmp_path / "c.txt.gz"]))


# What is printed

COMMANDS = "\x1b[2J\x1b]0;mine\x07\r\x08\x9b31m\u202e\u2066\ud800"
DANGEROUS = {one for one in COMMANDS if not one.isprintable()}


def test_printed_text_commands_nothing(tmp_path, ended, capsys):
    path = tmp_path / f"q{COMMANDS[:-1]}.jsonl"
    path.write_text('{"question": "Who?", "answers": ["me"], "gol\\u001b[2Jd": 1}\n{')
    done = ended("evaluate", "--model", "unused", "--data", path)
    assert done.returncode == 2 and "\\x1b[2J" in done.stderr and "\\u202e" in done.stderr
    assert not DANGEROUS & set(done.stderr + done.stdout)


def test_every_way_to_print_spells_them_out(capsys):
    from rich.table import Table
    from rich.text import Text

    table = Table("a")
    table.add_row(COMMANDS)
    console = SafeConsole()
    for shown in (COMMANDS, Text(f"a{COMMANDS}"), table):
        console.print(shown, soft_wrap=True)
    printed = capsys.readouterr().out
    assert not DANGEROUS & set(printed)
    assert printed.count("\\x1b") == 6
    assert spelled("é 👍 ‘a’\tb\n") == "é 👍 ‘a’\tb\n"
    console.print("a :bomb: b")
    assert ":bomb:" in capsys.readouterr().out

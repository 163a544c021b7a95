"""Readers: every schema gives the same kind of record, and every fault is named with its place."""

import gzip
import json
import re
from pathlib import Path

import pytest

import floatscope as fs
from floatscope.tasks.readers import read_records
from floatscope.tasks.record import Passage, Record, from_world
from floatscope.tasks.schemas import ALL
from floatscope.tasks.scores import contains
from floatscope.tasks.world import LEVELS, World
from floatscope.tasks.world_questions import world_records

DATA = Path(__file__).parent / "data"
SHARED = Path(__file__).parents[2] / "shared" / "data"  # the whole sets, where they are at hand

# excerpt: schema, records, passages of the first, its gold, the whole set, its records
FILES = {
    "nq-open-oracle.jsonl": ("lost-in-the-middle, DPR", 12, 1, 0, "nq-open-oracle.jsonl.gz", 2655),
    "nq-multidoc.jsonl": ("gold and distractors apart", 3, 20, 8, "nq-multidoc.600.jsonl.gz", 600),
    "halueval.jsonl": ("HaluEval", 12, 1, 0, "hotpot-halueval.1000.jsonl.gz", 1000),
    "kv-retrieval.jsonl": (
        "key-value retrieval",
        2,
        75,
        18,
        "kv-retrieval-75_keys.200.jsonl.gz",
        200,
    ),
    "xquad.json": ("SQuAD", 10, 1, 0, "xquad.en.json", 1190),
    "attention-floating.jsonl": ("Attention-Floating", 3, 2, None, None, 0),
    "plain.jsonl": ("plain", 3, 2, 1, None, 0),
}


@pytest.mark.parametrize("name", FILES)
def test_every_schema_is_recognised_and_read(name):
    schema, n, passages, gold, _, _ = FILES[name]
    found = read_records(DATA / name)
    assert (found.schema, len(found.records), found.bad) == (schema, n, ())
    first = found.records[0]
    assert (len(first.passages), first.gold) == (passages, gold)
    assert len({r.id for r in found.records}) == n
    assert all(str(DATA / name) in r.where for r in found.records)


@pytest.mark.parametrize("name", [n for n in FILES if FILES[n][4]])
def test_whole_published_sets_are_read(name):
    """The same on all records, where the sets are at hand; the excerpts always run above."""
    schema, _, _, _, whole, n = FILES[name]
    if not (SHARED / whole).exists():
        pytest.skip(f"{SHARED / whole} is not here; its excerpt is tested in any case")
    found = read_records(SHARED / whole)
    assert (found.schema, len(found.records), found.bad) == (schema, n, ())
    assert all(r.gold is not None for r in found.records)
    excerpt = read_records(DATA / name).records[0]
    first = found.records[0]
    assert (first.question, first.answers) == (excerpt.question, excerpt.answers)
    assert first.passages == excerpt.passages
    if name == "nq-multidoc.jsonl":
        # No distractor holds an answer as spelled, but some do without its article ("the NFL").
        # Conditions that set the number of passages leave those out.
        others = [(r, p) for r in found.records for p in r.passages if not p.gold]
        for r, p in others:
            spelled = "|".join(map(re.escape, r.answers))
            assert not re.search(rf"(?i)(?<!\w)({spelled})(?!\w)", p.text)
        assert len({r.id for r, p in others if contains(p.text, r.answers)}) == 6
        assert {r.gold for r in found.records} == set(range(20))  # it stands anywhere


def test_fields_of_every_schema_become_fields_of_the_record():
    (kv, *_) = read_records(DATA / "kv-retrieval.jsonl").records
    assert kv.question == 'Which value belongs to the key "2a8d601d-1d69-4e64-9f90-8ad825a74195"?'
    assert f'"{kv.answers[0]}"' in kv.passages[kv.gold].text
    one, two, three = read_records(DATA / "attention-floating.jsonl").records
    assert one.id == "a1" and one.answers == ("London", "London, England")
    assert two.answers == ("the Danube",) and two.passages[0].title == "Vienna"
    assert three.id == "attention-floating:3"
    squad = read_records(DATA / "xquad.json").records[0]
    assert squad.passages[0].title == "Super Bowl 50" and squad.answers == ("308",)
    plain = read_records(DATA / "plain.jsonl").records
    assert plain[1].id == "danube" and plain[2].passages == () and plain[2].gold is None
    assert plain[0].closed_book().passages == ()


def test_questions_with_one_gold_passage_share_a_cluster_also_without_it():
    squad = read_records(DATA / "xquad.json").records
    for one in squad:
        for other in squad:
            same = one.passages[0].text == other.passages[0].text
            assert (one.cluster == other.cluster) == same
        assert one.closed_book().cluster == one.cluster != ""
    unmarked = read_records(DATA / "attention-floating.jsonl").records[0]
    assert unmarked.cluster == ""


def test_dpr_without_isgold_marks_the_first_passage_with_the_answer_as_gold(tmp_path):
    ctxs = [{"text": "x", "has_answer": False}, *[{"text": "y", "has_answer": True}] * 2]
    record = read(tmp_path, [{"question": "q", "answers": ["y"], "ctxs": ctxs}]).records[0]
    assert [p.gold for p in record.passages] == [False, True, False]


def test_gzip_arrays_marks_and_limits(tmp_path):
    lines = (DATA / "plain.jsonl").read_text().splitlines()
    zipped = tmp_path / "plain.jsonl"  # by content, whatever the name says
    zipped.write_bytes(gzip.compress("\n".join(lines).encode()))
    array = tmp_path / "array.json"
    array.write_text(json.dumps([json.loads(line) for line in lines], indent=1))
    single = tmp_path / "single.json"
    single.write_text(json.dumps(json.loads(lines[0]), indent=1))
    marked = tmp_path / "marked.jsonl"
    marked.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode())
    expected = [r.question for r in read_records(DATA / "plain.jsonl").records]
    for path in (zipped, array, marked):
        assert [r.question for r in read_records(path).records] == expected
    assert len(read_records(single).records) == 1
    assert len(read_records(zipped, limit=2).records) == 2
    with pytest.raises(fs.UsageError, match="limit = 0"):
        read_records(zipped, limit=0)


def read(folder, rows, **options):
    path = folder / "rows.jsonl"
    lines = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in rows]
    path.write_bytes(b"\n".join(lines))
    return read_records(path, **options)


GOOD = {"question": "Who?", "answers": ["I"], "passages": ["It was I."], "gold": 0}
CTXS = {"question": "Who?", "answers": ["I"], "ctxs": [{"text": "It was I.", "isgold": True}]}
FAULTS = [
    (GOOD, b'{"question": "Wh', "line 2: is not JSON.*column", "Repair"),
    (GOOD, b'{"question": "\xff"}', "line 2: is not UTF-8", "Convert"),
    (GOOD, b"[1]", "line 2: is a list, not an object", "Write"),
    (GOOD, {"answers": ["I"]}, "line 2: field question is missing", "plain records are"),
    (GOOD, {"question": "Who?"}, "line 2: field answers is missing", "plain records are"),
    (GOOD, GOOD | {"question": " "}, "line 2: field question is empty", "Fill it in"),
    (GOOD, GOOD | {"question": 3}, "field question is 3, where a string is expected", "plain"),
    (GOOD, GOOD | {"answers": []}, "field answers is an empty list", "at least one"),
    (GOOD, GOOD | {"answers": ["I", 7]}, r"field answers\[1\] is 7, where a string", "plain"),
    (GOOD, GOOD | {"answers": [""]}, r"field answers\[0\] is empty", "Fill"),
    (GOOD, GOOD | {"passages": ["a", "\n"]}, r"field passages\[1\] is empty", "Fill"),
    (GOOD, GOOD | {"gold": 1}, "field gold is 1, but there are 1 passages", "from 0"),
    (GOOD, GOOD | {"gold": "0"}, "field gold is '0', where a int is expected", "plain"),
    (GOOD, {"question": "Q", "answer": "A", "pasages": []}, "field pasages is not", "'passages'"),
    (GOOD, b'{"question": "\\ud800", "answer": "A"}', "unpaired surrogate", "Unicode"),
    (GOOD | {"id": 1}, GOOD | {"id": 1}, "field id '1' is already the id of .*line 1", "own"),
    (CTXS, CTXS | {"ctxs": None}, "field ctxs is None, where a list", "lost-in-the-middle"),
    (CTXS, CTXS | {"ctxs": [{"title": "t"}]}, r"field ctxs\[0\].text is missing", "ctxs:"),
    (CTXS, {"question": "Who?", "answers": ["I"]}, "field ctxs is missing", "ctxs:"),
]


@pytest.mark.parametrize(("good", "fault", "says", "remedy"), FAULTS)
def test_faults_are_named_with_file_line_field_and_remedy(tmp_path, good, fault, says, remedy):
    with pytest.raises(fs.UsageError, match=says) as caught:
        read(tmp_path, [good, fault, good | {"question": "Where?", "id": "other"}])
    assert str(tmp_path / "rows.jsonl") in str(caught.value) and remedy in caught.value.remedy
    found = read(tmp_path, [good, fault, good | {"id": "other"}], skip_bad=True)
    assert len(found.records) == 2 and len(found.bad) == 1
    assert "line 2" in found.bad[0].where and found.bad[0].remedy


def test_one_broken_line_does_not_decide_the_schema(tmp_path):
    rows = [{"question": "Who?", "answers": ["I"]}, b"{", CTXS, CTXS]
    found = read(tmp_path, rows, skip_bad=True)
    assert found.schema.startswith("lost") and len(found.records) == 2
    assert [b.field for b in found.bad] == ["ctxs", ""]


def test_files_that_cannot_be_read_at_all(tmp_path):
    with pytest.raises(fs.UsageError, match="does not exist"):
        read_records(tmp_path / "none.jsonl")
    with pytest.raises(fs.UsageError, match="is not a regular file"):
        read_records(tmp_path)
    path = tmp_path / "x.jsonl"
    for content, says in [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"[]", "is an empty list"),
        (gzip.compress(b"{}" * 100)[:-9], "is damaged"),
        (b'{"prompt": "a", "text": "b"}', "no known schema; it has prompt, text"),
        (b"1\n2", "no known schema.*not JSON objects"),
        (b"{\n{", "line 1: is not JSON"),
    ]:
        path.write_bytes(content)
        for skip_bad in (False, True):
            with pytest.raises(fs.UsageError, match=says) as caught:
                read_records(path, skip_bad=skip_bad)
    path.write_bytes(b'{"prompt": "a"}')
    with pytest.raises(fs.UsageError) as caught:
        read_records(path)
    assert all(schema.layout in caught.value.remedy for schema in ALL)
    with pytest.raises(fs.UsageError, match="none of the 2 records"):
        read(tmp_path, [{"question": "", "answer": "a"}, b"{"], skip_bad=True)
    broken = tmp_path / "squad.json"
    broken.write_text('{\n "data": [\n  oops\n ]}')
    with pytest.raises(fs.UsageError, match="line 3: is not JSON"):
        read_records(broken)
    broken.write_bytes(b'{\n "data": [\n "\xff"\n ]}')
    with pytest.raises(fs.UsageError, match="line 3: is not UTF-8"):
        read_records(broken)


def test_squad_faults_name_the_question_and_its_path(tmp_path):
    document = json.loads((DATA / "xquad.json").read_text())
    articles = document["data"]
    articles[0]["paragraphs"][0]["qas"][1]["answers"] = []
    del articles[1]["paragraphs"][0]["context"]
    del articles[2]["paragraphs"]
    articles[3]["paragraphs"][0]["qas"][2] = "oops"
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(document))
    name = articles[0]["paragraphs"][0]["qas"][1]["id"]
    with pytest.raises(
        fs.UsageError, match=rf"qas\[1\], question {name}: field answers is an empty"
    ):
        read_records(path)
    found = read_records(path, skip_bad=True)
    assert len(found.records) == 10 - 1 - 3 - 1 - 1
    told = [(b.where.split(", ")[1], b.field) for b in found.bad]
    assert told == [
        ("data[0].paragraphs[0].qas[1]", "answers"),
        *[(f"data[1].paragraphs[0].qas[{i}]", "context") for i in range(3)],
        ("data[2]", "paragraphs"),
        ("data[3].paragraphs[0].qas[2]", ""),
    ]


@pytest.mark.parametrize("level", LEVELS)
def test_world_records_follow_from_the_seed_and_the_level(level):
    name = f"world:{level}"
    records = world_records(name, 5, seed=3)
    assert records == world_records(name, 5, seed=3) != world_records(name, 5, seed=4)
    assert len({r.id for r in records}) == 5 and not any(r.known for r in records)
    for record in records:
        assert len(record.passages) == LEVELS[level].passages
        assert record.answers[0] in record.passages[record.gold].text
        assert sum(p.is_required for p in record.passages) == LEVELS[level].hops
    if LEVELS[level].confusable:
        with pytest.raises(fs.UsageError, match="confusable names"):
            world_records(name, 5, known=True)
    else:
        assert all(r.known for r in world_records(name, 5, known=True))


def test_unknown_worlds_are_refused():
    with pytest.raises(fs.UsageError, match="'world:ten'.*world:nine"):
        world_records("world:ten", 1)
    with pytest.raises(fs.UsageError, match="0 questions of world:one"):
        world_records("world:one", 0)


def test_records_without_question_answer_or_passage_text_are_refused():
    example = World().examples(LEVELS["one"], 1)[0]
    assert from_world(example.closed_book(), "x").passages == ()
    with pytest.raises(fs.UsageError, match="'x'.*question is empty"):
        Record("x", " ", ("a",))
    with pytest.raises(fs.UsageError, match="'x'.*no answer"):
        Record("x", "Who?", ())
    with pytest.raises(fs.UsageError, match="passage is empty"):
        Passage(" ")

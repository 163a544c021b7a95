"""Files of questions made to hurt, each from its seed, read by the public reader and asked about.

    python -m tests.attacks.hostile_records --count 2000 --seed 0

A file is read, or refused by a UsageError that names it. What is read and what is bad add up to what was
there; every bad record has its place and a remedy; no passages are dropped without a word; what is read
becomes a prompt under every condition, or a UsageError. Nothing else is raised, and nothing hangs.
"""

import argparse
import gzip
import json
import random
import re
import signal
import sys
import tempfile
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from floatscope.cli.console import spelled
from floatscope.errors import UsageError
from floatscope.tasks.conditions import Condition
from floatscope.tasks.pool import Pool
from floatscope.tasks.readers import Records, read_records
from floatscope.tasks.templates import PlainTemplate

LIMIT = 10  # seconds of computing for one file
CONDITIONS = [
    Condition.parse(text)
    for text in (
        *("as-is", "closed-book", "passages=2,gold=0", "passages=3,noise=0.5", "question-first"),
        *("conflicts=1", "gold=1", "passages=4,conflicts=1,extra-masks=3"),
    )
]
PLACE = re.compile(r", (line \d+|item \d+|data\[\d+\].*|the one record)$", re.DOTALL)
PASSAGES = "passages ctxs passage distractors knowledge ordered_kv_records context".split()
TEXTS = (
    "| |\u200b\ufeff|\xa0\u3164|\x1b[2J\x1b]0;x\x07|a\rb|\u202eabc\u2066|\0|e\u0301|\ud800".split(
        "|"
    )
)
TEXTS += "a\udfff|[bold]|{0}|%s|<script>|\u2028|\x85|\\|(?i)(|the|...|ﬃ|İ|ß|🏳️‍🌈|\U000e0041".split(
    "|"
)
TEXTS += ["<|endoftext|>", "[MASK]", "None", "\n\nQuestion:", "x" * 20_000]
ODD = json.loads('[null, true, 0, -1, 1e308, 1e999, NaN, [], {}, [[]], [null], {"a": {}}, [""]]')
ODD += json.loads('[["a", 1], {"text": "a"}, [{"text": "a"}], [{"segment": 1}], [["k", "v"]]]')
ODD += [10**100, *TEXTS]
BYTES = b"\0|\xff|\xef\xbb\xbf|\xc0\x80|\xed\xa0\x80|\r|\t|\x1b|\xf4\x90\x80\x80".split(b"|")
BYTES += rb'"|\|{|}|[|,|:|\ud83d|\u0000|NaN|-|1e999| |//'.split(b"|")


def _bases(rng: random.Random, id: str) -> list[dict[str, Any]]:
    """A good record of every schema; the last is a question of SQuAD, without its paragraph."""
    question, answer = f"Who wrote book {id}?", rng.choice(["Ada Lovelace", "1815", "the Danube"])
    text, other = f"It was {answer} who did, they say of {id}.", f"A fair day in {id}."
    ctxs = [{"title": "T", "text": text, "isgold": True}, {"text": other, "hasanswer": False}]
    kv = [["a", f"{id}-1"], ["b", f"{id}-2"]]
    asked = {"id": id, "question": question}
    right = {**asked, "answers": [answer]}
    return [
        {**right, "ctxs": ctxs},
        {**right, "gold": ctxs[0], "distractors": [{"text": other}]},
        {"id": id, "input": question, "output": answer, "passage": [{"segment": text}]},
        {**asked, "knowledge": text, "right_answer": answer, "hallucinated_answer": "x"},
        {"id": id, "ordered_kv_records": kv, "key": "b", "value": f"{id}-2"},
        {**right, "passages": [other, text], "gold": 1},
        {**asked, "answers": [{"text": answer, "answer_start": 7}]},
    ]


def record(seed: int) -> bytes:
    """One line of this seed: an object of some schema, changed once or more, or not at all."""
    rng = random.Random(seed)
    schema = rng.randrange(6)
    return _line(rng, schema, str(seed), rng.randint(0, 3))


def _line(rng: random.Random, schema: int, id: str, changes: int) -> bytes:
    data = _bases(rng, id)[schema]
    in_bytes = rng.random() < 0.4
    for _ in range(0 if in_bytes else changes):
        _change(rng, data)
    raw = json.dumps(data, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    for _ in range(changes if in_bytes else 0):
        raw = _break(rng, raw)
    return raw.replace(b"\n", b" ")


def _change(rng: random.Random, data: Any) -> None:
    """One change at a random depth of the object."""
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        if not keys:
            return
        key = rng.choice(keys)
        if not (isinstance(data[key], dict | list) and data[key] and rng.random() < 0.6):
            break
        data = data[key]
    how = rng.choice("odd odd odd drop rename add copy deep".split())
    if how == "odd":
        data[key] = deepcopy(rng.choice(ODD))
    elif how == "drop":
        del data[key]
    elif how == "deep":
        for _ in range(rng.choice([3, 200])):
            data[key] = [data[key]]
    elif isinstance(data, list):
        data.insert(rng.randint(0, len(data)), data[key])
    elif how == "rename":
        name = str(key)
        others = [
            *PASSAGES,
            f"{name}s",
            name[:-1],
            name.upper(),
            "answer",
            "",
            "\x1b[2J",
            "a" * 999,
        ]
        data[rng.choice(others)] = data.pop(key)
    else:
        name = rng.choice([*PASSAGES, "x", "id", "data", "gold"])
        data[name] = deepcopy(data[key] if how == "copy" else rng.choice(ODD))


def _break(rng: random.Random, raw: bytes) -> bytes:
    """One change of the bytes."""
    at = rng.randint(0, len(raw))
    return rng.choice(
        [
            raw[:at],
            raw[:at] + rng.choice(BYTES) + raw[at:],
            raw[:at] + rng.choice(BYTES) + raw[at + 1 :],
            rng.choice(BYTES) + raw,
            raw + rng.choice(BYTES),
            raw + raw,
            raw[:-1] + b', "n": ' + b"9" * rng.choice([18, 4300, 4301, 9000]) + b"}",
            raw[:-1] + b', "n": ' + b"[" * rng.choice([5, 900, 50_000]) + b"}",
            raw[:-1] + b', "n": ' + b"[" * 600 + b"]" * 600 + b"}",
            raw[:-1] + b', "question": "again?"}',
            raw[:-1] + b', "x": {"a": 1, "a": 2}}',
            b"[" + raw + b"]",
            b'"' + raw.replace(b'"', b'\\"') + b'"',
            rng.choice([b"null", b"1", b"[]", b"{}", b'""', b"true", b"NaN"]),
        ]
    )


def file(seed: int) -> tuple[str, bytes, int | None]:
    """A file of this seed: its name, its bytes, and how many records it holds; None: one cannot say."""
    rng = random.Random(seed)
    kind = rng.choice("lines lines lines lines array squad mixed json".split())
    schema, n = rng.randrange(6), rng.randint(1, 6)
    schemas = [rng.randrange(6) if kind == "mixed" else schema for _ in range(n)]
    if kind == "squad":
        raw, expected = _squad(rng, n)
    else:
        counts = [rng.choice([0, 0, 1, 2]) for _ in range(n)]
        lines = [
            _line(rng, one, f"{seed}-{i}", c)
            for i, (one, c) in enumerate(zip(schemas, counts, strict=True))
        ]
        if rng.random() < 0.1:
            lines.append(lines[0])  # an id twice
        if kind == "array":
            raw, expected = b"[" + b",\n".join(lines) + b"]", _items(lines)
        else:
            end = rng.choice([b"\n", b"\n", b"\r\n", b"\n\n", b"\n \t\r\n"])
            raw = end.join(lines) + rng.choice([b"", b"\n"])
            held = [line for line in raw.split(b"\n") if line.strip()]
            expected = None if held and held[0].lstrip().startswith(b"[") else len(held)
    if rng.random() < 0.1:
        raw = b"\xef\xbb\xbf" + raw
    name = "q.json" if kind in ("array", "squad", "json") else "q.jsonl"
    if rng.random() < 0.2:
        raw, name = gzip.compress(raw, mtime=0), rng.choice([name, f"{name}.gz"])
        if rng.random() < 0.3:
            at = rng.randrange(len(raw))
            cut = raw[:at] + rng.randbytes(1) + raw[at + 1 :]
            raw, expected = rng.choice([raw[:at], cut, raw + b"x"]), None
    return name, raw, expected


def _items(lines: list[bytes]) -> int | None:
    try:
        return len(json.loads(b"[" + b",".join(lines) + b"]"))
    except (ValueError, RecursionError):
        return None


def _squad(rng: random.Random, n: int) -> tuple[bytes, int]:
    questions = [_bases(rng, f"s{i}")[6] for i in range(n)]
    for question in questions:
        for _ in range(rng.choice([0, 0, 1, 2])):
            _change(rng, question)
    paragraph = {"context": "It was Ada Lovelace in 1815 at the Danube.", "qas": questions}
    if rng.random() < 0.2:
        paragraph["context"] = deepcopy(rng.choice(ODD))
    document = {"data": [{"title": rng.choice(["A_%20b", *TEXTS]), "paragraphs": [paragraph]}]}
    text = json.dumps(document, indent=rng.choice([None, 1]))
    return text.encode("utf-8", "surrogatepass"), n


def read(seed: int, folder: Path) -> tuple[str, str]:
    """What became of a file: a short name, and what was wrong with that, or ""."""
    name, raw, expected = file(seed)
    path = folder / name
    path.write_bytes(raw)
    try:
        with _in_time():
            return _read(path, raw, expected)
    except Exception as error:  # anything but a UsageError is what is looked for
        return "raised", f"{type(error).__name__}: {str(error)[:300]}"


def _read(path: Path, raw: bytes, expected: int | None) -> tuple[str, str]:
    try:
        found = read_records(path, skip_bad=True)
    except UsageError as error:
        wrong = _unclear(path, str(error), error.remedy)
        if "skip" in error.remedy:
            wrong = f"advises to skip, which was done: {error.remedy}"
        return "refused", wrong
    total = len(found.records) + len(found.bad)
    if expected is not None and total != expected:
        return (
            "lost",
            f"{expected} records in the file, {len(found.records)} read, {len(found.bad)} bad",
        )
    for bad in found.bad:
        if not PLACE.search(re.sub(r", question .*", "", bad.where, flags=re.DOTALL)):
            return "read", f"a bad record without a place: {bad.where!r}"
        if wrong := _unclear(path, str(bad), bad.remedy):
            return "read", wrong
    wrong = _dropped(path, raw, found) or _strictly(path, found) or _prompts(found)
    return "read, some bad" if found.bad else "read", wrong


def _unclear(path: Path, text: str, remedy: str) -> str:
    if str(path) not in text or not remedy or len(text) > 5000:
        return f"an unclear message: {text[:300]!r}, {remedy!r}"
    if not all(one.isprintable() or one in "\n\t" or one > "\x9f" for one in spelled(text)):
        return f"a control character would be printed: {text[:300]!r}"
    return ""


def _dropped(path: Path, raw: bytes, found: Records) -> str:
    """Passages that stand in a line and are neither read nor said to be bad."""
    lines = (
        (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        .removeprefix(b"\xef\xbb\xbf")
        .split(b"\n")
    )
    for one in found.records:
        at = re.search(r"line (\d+)$", one.where)
        if at and not one.passages:
            data = json.loads(lines[int(at[1]) - 1])
            if any(data.get(name) for name in PASSAGES):
                return f"{one.where}: its passages were dropped"
    return ""


def _strictly(path: Path, found: Records) -> str:
    """Without `skip_bad` the first bad record is the error; without any, the same records."""
    try:
        again = read_records(path)
    except UsageError as error:
        first = found.bad[0] if found.bad else None
        return "" if first and str(first) in str(error) else f"an error only now: {error}"
    return "" if again == found else "read otherwise without skip_bad"


def _prompts(found: Records) -> str:
    pool = Pool(found.records)
    for one in found.records:
        drawn = CONDITIONS[1 + zlib.crc32(one.id.encode()) % (len(CONDITIONS) - 1)]
        for condition in (CONDITIONS[0], drawn):
            try:
                prompt = PlainTemplate().prompt(condition.apply(one, pool), condition)
            except UsageError:
                continue
            if one.question not in prompt.text:
                return f"{one.where}: the question is not in its prompt"
            prompt.text.encode("utf-8")
    return ""


@contextmanager
def _in_time() -> Iterator[None]:
    """An error after LIMIT seconds of this process' own time, where signals can be had."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: object) -> None:
        raise TimeoutError(f"not done in {LIMIT} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def attack(count: int, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """Outcomes by name, and what failed."""
    outcomes: Counter[str] = Counter()
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        for one in range(seed, seed + count):
            name, wrong = read(one, Path(folder))
            outcomes[name] += 1
            if wrong:
                failures.append(f"seed {one}: {name}: {wrong}")
    return outcomes, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    outcomes, failures = attack(options.count, options.seed)
    print(f"{options.count} files of records from seed {options.seed}")
    for name, n in sorted(outcomes.items()):
        print(f"  {name:<16}{n:>7}")
    print(f"  {'failures':<16}{len(failures):>7}")
    for failure in failures[:20]:
        print(ascii(failure), file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

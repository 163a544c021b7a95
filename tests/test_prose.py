"""The prose that is shipped: independent examples, whole sentences, and enough of them."""

import re
from itertools import combinations

import numpy as np
import pytest

from floatscope.errors import UsageError
from floatscope.studies import request_of
from floatscope.studies.planning import plan
from floatscope.studies.worker import _prose
from floatscope.tasks.prose import FILE, PASSAGES, prose, sentences
from floatscope.tasks.record import Passage, Record

PIECE = re.compile(r"[^.!?]{20,}[.!?]")  # cut without knowledge of titles and initials


def test_no_two_passages_share_a_sentence():
    every = [{s.casefold() for s in passage} for passage in sentences()]
    assert len(every) == PASSAGES >= 64
    assert all(not one & two for one, two in combinations(every, 2))
    assert all(len(set(passage)) == len(passage) for passage in sentences())


def test_passages_are_long_and_of_as_many_authors():
    assert min(len(" ".join(passage)) for passage in sentences()) >= 2400
    named = (FILE.parent / "PROSE.md").read_text(encoding="utf-8")
    authors = re.findall(r"^- (.+?), \*", named, re.M)
    assert len(set(authors)) == len(authors) == PASSAGES
    assert "public domain" in named


def test_a_passage_is_cut_between_words():
    for index in (0, 17, PASSAGES - 1):
        whole = " ".join(sentences()[index])
        words = whole.split(" ")
        for length in (40, 300, 1500):
            text = prose(index, length)
            assert text.split(" ") == words[: len(text.split(" "))]
            assert length - max(map(len, words)) <= len(text) <= length
        assert prose(index, 10**6) == whole


def test_examples_of_a_run_share_no_sentence():
    """Once, every example was the same 24 sentences in another order."""
    record = Record("q", "What?", ("x",), (Passage("word " * 300),))
    prompts = [_prose(record, i) for i in range(PASSAGES)]
    texts = ["".join(part.text for part in prompt.parts) for prompt in prompts]
    pieces = [set(PIECE.findall(text)) for text in texts]
    assert all(not one & two for one, two in combinations(pieces, 2))
    lengths = np.array([len(text) for text in texts])
    assert (lengths > 1480).all() and (lengths <= 1505).all()


def test_more_than_there_are_is_refused_and_not_planned():
    with pytest.raises(UsageError, match=f"from 0 to {PASSAGES - 1}, got {PASSAGES}"):
        prose(PASSAGES, 100)
    fields = {"studies": ["dormancy"], "models": ["pair/mdm"], "shard": 50}
    for limit, planned in ((40, 40), (200, PASSAGES)):
        shards = plan(request_of(fields | {"limit": limit})).shards
        stops = [s.spec["stop"] for s in shards if s.spec.get("domain") == "prose"]
        assert max(stops) == planned

"""The glossary is sorted, unambiguous and linked, and its page agrees with the data."""

import re
from pathlib import Path

import pytest

from floatscope.glossary import load_glossary

ROOT = Path(__file__).parent.parent
TERMS = load_glossary()


def sort_key(term):
    return term.replace("δ", "delta").replace("θ", "theta").casefold()


def test_terms_are_sorted():
    assert list(TERMS) == sorted(TERMS, key=sort_key)


def test_every_spelling_stands_for_one_term():
    spellings = [s.casefold() for term, entry in TERMS.items() for s in (term, *entry["also"])]
    assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize("term", TERMS)
def test_definition_is_one_to_three_sentences(term):
    definition = TERMS[term]["definition"]
    assert definition[0].isupper() or definition.startswith("W_O")
    assert definition.endswith(".")
    assert len(re.findall(r"\.(?:\s|$)", definition)) <= 3
    assert len(definition.split()) <= 50


def slug(title):
    """Return the anchor that mkdocs gives to a heading."""
    ascii_title = title.encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_title).strip().lower())


def test_every_link_leads_to_a_heading_of_the_page():
    page = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    anchors = {slug(title) for title in re.findall(r"^## (.+)$", page, re.M)}
    links = {entry["link"] for entry in TERMS.values()}
    assert links == {f"reference/glossary.md#{anchor}" for anchor in anchors}


def test_pages_for_further_reading_exist():
    for entry in TERMS.values():
        assert (ROOT / "docs" / "reference" / entry.get("more", "glossary.md")).is_file()

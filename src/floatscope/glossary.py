"""The glossary: definitions of the terms that pages, figures and documentation use.

`glossary.json` contains the definitions. The report and the live page show them as tooltips;
`docs/reference/glossary.md` is generated from `glossary.json`.
"""

import json
from importlib.resources import files
from typing import NotRequired, TypedDict


class Term(TypedDict):
    """An entry of the glossary: the definition of a term.

    Args:
        definition: One or two plain sentences.
        also: Other spellings, plurals and synonyms.
        link: Page and anchor of the entry, relative to `docs/`.
        more: Page that explains the term in detail, relative to `docs/reference/`.
    """

    definition: str
    also: list[str]
    link: str
    more: NotRequired[str]


def load_glossary() -> dict[str, Term]:
    """Return the entry of every term in the glossary, by term, in alphabetical order."""
    text = files(__package__).joinpath("glossary.json").read_text(encoding="utf-8")
    terms: dict[str, Term] = json.loads(text)
    return terms

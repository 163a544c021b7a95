"""Names and parameters that must be read twice stay few. `python -m tests.plain_words --list` shows them."""

from tests.plain_words import filler_names, undocumented_parameters

FILLERS_IN_SRC = 2084
UNDOCUMENTED = 536


def test_source_binds_few_filler_names():
    places = filler_names()
    assert len(places) <= FILLERS_IN_SRC, "\n".join(map(str, places[-20:]))


def test_public_parameters_are_documented():
    missing = undocumented_parameters()
    assert len(missing) <= UNDOCUMENTED, "\n".join(missing[-20:])

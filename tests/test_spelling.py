"""Pages and docstrings are spelled right, in British English, without double words or endless sentences."""

import pytest

from tests.spelling import check, docstrings, findings, misspelled, modules, pages, without_code


def test_codespell_finds_nothing():
    assert misspelled([*pages(), *modules()]) == []


def test_codespell_finds_a_misspelled_word(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("The atention is recieved.\n")
    assert ["atention" in line for line in misspelled([page])] == [True, False]


def test_pages_follow_the_project_s_spelling():
    assert not list(map(str, findings(pages())))


def test_docstrings_follow_the_project_s_spelling():
    assert not list(map(str, findings(modules())))


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("The color of a line.", "American spelling: color"),
        ("Normalized by the mean.", "American spelling: Normalized"),
        ("It is the\nthe mean.", "double word: the the"),
        ("A mask comes\nwith it.", "avoid the phrase 'comes with it'"),
        ("Nobody's column.", 'avoid the phrase "Nobody\'s"'),
        ("one two three " * 20 + "four" + ".", "61 words in one sentence"),
    ],
)
def test_check_finds(text, finding):
    ((_, found),) = check(text)
    assert found.startswith(finding)


@pytest.mark.parametrize(
    "text",
    [
        "The colour of `color=` and of [a link](color.md), and the tokenizer's licence.",
        "```python\ncolor = the the\n```\n",
        'Some texts say "movie; color".',
        "He said that that was right. A. A second one.",
        "one two " * 20 + ". " + "One two " * 20 + ".",
        "- " + "one two " * 20 + "\n- " + "one two " * 20,
        "| " + "one two " * 35 + "|",
    ],
)
def test_check_accepts(text):
    assert not list(check(text))


def test_findings_name_the_line(tmp_path):
    module = tmp_path / "module.py"
    module.write_text('"""Draw.\n\nThe color.\n"""\n\n\ndef f():\n    """Center it."""\n')
    assert [(f.line, f.text.split()[-1]) for f in findings([module])] == [
        (3, "color"),
        (8, "Center"),
    ]


def test_code_is_blanked_and_lines_stay():
    text = "One `code\nspan` here.\n\n```text\nblock\n```\n\nEnd."
    blanked = without_code(text)
    assert blanked.count("\n") == text.count("\n")
    assert "code" not in blanked and "block" not in blanked and "End." in blanked


def test_docstrings_of_all_kinds_are_read():
    source = '"""Module."""\nclass C:\n    """Class."""\n    def f(self):\n        """Method."""\n'
    assert [text for _, text in docstrings(source)] == ["Module.", "Class.", "Method."]

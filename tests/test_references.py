"""Every paper that a method names has an entry, and an entry is what its method says."""

import re
from pathlib import Path

import pytest
import yaml

import floatscope as fs
from floatscope.decode import SAMPLERS
from floatscope.interventions import INTERVENTIONS
from floatscope.models import FAMILIES
from floatscope.report import references
from floatscope.report.references import NUMBER, entries

ROOT = Path(fs.__file__).parent
TOP = ROOT.parent.parent


def test_every_number_in_the_package_has_an_entry_and_every_entry_is_named():
    named = {
        n for path in ROOT.rglob("*.py") for n in NUMBER.findall(path.read_text(encoding="utf-8"))
    }
    assert named == set(entries()) - {"floatscope"}


@pytest.mark.parametrize(
    ("registry", "package"),
    [
        (SAMPLERS, "decode.samplers"),
        (INTERVENTIONS, "interventions.library"),
        (FAMILIES, "models.families"),
    ],
)
def test_what_is_read_from_the_source_is_what_is_imported(registry, package):
    """Of every registered method, by the name a run knows it by."""
    read = references._library(package)
    for name in registry.builtin:
        text = read[references._bare(name)]
        own = registry[name].__doc__ if isinstance(registry[name], type) else ""
        assert set(NUMBER.findall(own or "")) <= set(NUMBER.findall(text))
    assert any(NUMBER.search(text) for text in read.values())


def test_every_family_names_its_paper():
    read = references._library("models.families")
    assert all(
        NUMBER.search(read[references._bare(FAMILIES[name].name)]) for name in FAMILIES.builtin
    )


def test_entries_are_whole():
    keys = []
    for number, entry in entries().items():
        kind, key = re.match(r"@(\w+){(\w+),\n", entry).groups()
        keys.append(key)
        assert entry.count("{") == entry.count("}") and entry.endswith(",\n}")
        assert {"title", "author", "year"} <= set(re.findall(r"^  (\w+) = ", entry, re.M))
        if kind == "misc":
            assert f"https://arxiv.org/abs/{number}" in entry
            century = 2000 + int(number[:2])
            assert abs(int(re.search(r"year = {(\d+)}", entry)[1]) - century) <= 1
    assert len(set(keys)) == len(keys)


def test_the_citation_file_says_the_same_as_the_entries():
    cited = yaml.safe_load((TOP / "CITATION.cff").read_text(encoding="utf-8"))
    project = (TOP / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{cited["version"]}"' in project
    own = entries()["floatscope"]
    assert f"title = {{{cited['title']}}}" in own and f"version = {{{cited['version']}}}" in own
    for one in cited["references"]:
        entry = entries()[one["identifiers"][0]["value"].removeprefix("arXiv:")]
        authors = " and ".join(f"{a['family-names']}, {a['given-names']}" for a in one["authors"])
        assert one["title"] in entry and f"author = {{{authors}}}" in entry


def test_a_measure_brings_the_paper_of_its_rule():
    assert "2601.07894" in references._of_object(fs.measures.Absorption())
    assert "2410.10781" in references._of_object(fs.measures.Absorption(rule=fs.anchors.Share(0.3)))
    assert "2410.10781" not in references._of_object(fs.measures.Absorption())

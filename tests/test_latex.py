"""Tables as LaTeX: what is text stays text, and every row has its columns."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latex_tables import assert_sound
from planted import random_attention, trace_of

import floatscope as fs
from floatscope.measures.latex import table, tex


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("50 % of a_b & {c}", r"50 \% of a\_b \& \{c\}"),
        ("−1.2·10⁻⁵", r"$-$1.2$\cdot 10^{-5}$"),
        ("2.5× → \\x ~ ^ $5 #1", r"2.5$\times$ $\to$ \textbackslash{}x \textasciitilde{} "
                                 r"\textasciicircum{} \$5 \#1"),
        ("two\nlines", "two lines"),
        ("–", "--"),
    ],
)  # fmt: skip
def test_special_characters_are_escaped(text, wanted):
    assert tex(text) == wanted


WORDS = st.text(alphabet="ab1 &%$#_{}~^\\<>|[]*−×·⁻⁵\n", max_size=8)


@given(st.lists(st.lists(WORDS, min_size=3, max_size=3), min_size=1, max_size=3), WORDS)
def test_any_text_gives_a_sound_table(rows, heading):
    made = table(
        ["a", "b & c", "%"], [(heading, rows)], align="lrr", caption=heading, label="tab:x"
    )
    assert_sound(made)


def test_a_row_with_too_few_cells_is_noticed():
    with pytest.raises(ValueError, match="expected 2 cells in a row, got 1"):
        table(["a", "b"], [("", [["x"]])], align="lr", caption="", label="tab:x")


def test_a_result_is_a_table_with_units_and_intervals():
    rng = np.random.default_rng(0)
    traces = [trace_of(random_attention(rng, 2, 3, 2, 24)) for _ in range(3)]
    found = fs.measures.Absorption()(traces)
    source = found.latex(caption="What 50 % do", label="tab:mine")
    assert_sound(source)
    assert r"\caption{What 50 \% do}" in source and r"\label{tab:mine}" in source
    assert r"{absorption (share)}" in source and source.count(r"\quad ") == len(found.table())
    row = found.table().query("value == 'top' and layer == 1").iloc[0]
    shown = re.search(
        r"{top \(share\)} \\\\\n.*\n\\quad 1 & ([\d.]+) \[([\d.]+), ([\d.]+)\]", source
    )
    for text, name in zip(shown.groups(), ("mean", "low", "high"), strict=True):
        assert float(text) == pytest.approx(row[name], rel=0.006)


def test_a_comparison_is_a_table_with_every_model_and_the_difference():
    rng = np.random.default_rng(0)
    results = [
        fs.measures.Absorption()([trace_of(random_attention(rng, 2, 3, 2, 24)) for _ in range(3)])
        for _ in range(2)
    ]
    compared = fs.compare(*results, labels=["first_model", "second"])
    source = compared.latex()
    assert_sound(source)
    assert r"\caption{Absorption of first\_model, second.}" in source
    assert r"{absorption\_difference (share)}" in source
    assert source.count(r"\quad ") == len(compared.table())

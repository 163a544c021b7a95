"""Format numbers and words as LaTeX tables for booktabs, with every special character escaped.

The cells of a table are given as plain text, as on a page, and only this module escapes them. `−`, `×` and
`10⁻⁵` become mathematics; names of files and models stay text.
"""

import re
from collections.abc import Sequence

_MATH = "× times · cdot ∞ infty → to ≤ leq ≥ geq ≠ neq ≈ approx ± pm Σ Sigma Δ Delta λ lambda"
_SYMBOLS = _MATH.split()
_ESCAPED = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{c: f"${c}$" for c in "<>|"},
    **dict(zip(_SYMBOLS[::2], (f"$\\{name}$" for name in _SYMBOLS[1::2]), strict=True)),
    "−": "$-$",
    "½": r"$\frac{1}{2}$",
    "‖": r"$\|$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "“": "``",
    "”": "''",
    "’": "'",
}
_COLUMN = 238.0  # points: a page's column of 3.3 in,
_LETTER, _BETWEEN = 4.0, 6.0  # an average letter of 8 points, and the space between columns
_POWERS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_SPECIAL = re.compile("(·10)?([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)|" + "|".join(map(re.escape, _ESCAPED)))

Row = Sequence[str]
Group = tuple[str, Sequence[Row]]


def tex(text: object) -> str:
    """Escape plain text for LaTeX; a line break becomes a space."""
    return _SPECIAL.sub(_escaped, " ".join(str(text).split()))


def _escaped(special: re.Match[str]) -> str:
    base, power = special.groups()
    if not power:
        return _ESCAPED[special[0]]
    times = r"\cdot 10" if base else ""
    return f"${times}^{{{power.translate(_POWERS)}}}$"


def table(
    header: Row, groups: Sequence[Group], *, align: Sequence[str], caption: str, label: str
) -> str:
    """Format a table environment; each group in `groups` is a heading (or "") and a list of rows.

    `align` is the column specification of `tabular`. A wide table spans both columns of a page.
    """
    all_rows = [header, *(row for _, rows in groups for row in rows)]
    for row in all_rows:
        if len(row) != len(align):
            raise ValueError(f"expected {len(align)} cells in a row, got {len(row)}")
    letters = sum(max(map(len, column)) for column in zip(*all_rows, strict=True))
    kind = "table*" if _LETTER * letters + _BETWEEN * len(align) > _COLUMN else "table"
    lines = [_row(header), r"\midrule"]
    for number, (heading, rows) in enumerate(groups):
        lines += [r"\addlinespace"] * (number > 0)
        if heading:
            lines.append(f"\\multicolumn{{{len(align)}}}{{l}}{{{tex(heading)}}} \\\\")
        indent = r"\quad " if heading and align[0] == "l" else ""
        lines += [indent + _row(row) for row in rows]
    return "\n".join(
        [
            f"% \\usepackage{{booktabs}}\n\\begin{{{kind}}}[t]",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            f"\\caption{{{tex(caption)}}}",
            f"\\label{{{label}}}",
            f"\\begin{{tabular}}{{{''.join(align)}}}",
            r"\toprule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            f"\\end{{{kind}}}\n",
        ]
    )


def _row(cells: Row) -> str:
    """Join the cells of a row, and protect a leading "[" or "*", which LaTeX would read as an option."""
    text = " & ".join(map(tex, cells))
    return ("{}" if text.startswith(("[", "*")) else "") + text + r" \\"

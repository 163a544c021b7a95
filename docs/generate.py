"""Writes the lists and counts of the documentation from what the package registers.

    python docs/generate.py            # after adding a measure, a flag, a study …
    python docs/generate.py --check    # names the pages that differ, and fails; the tests do this

Between `<!-- generated: NAME -->` and `<!-- end -->` a page holds what NAME makes here, and nothing
written by hand: a table where the marker ends its line, a word inside a sentence elsewhere.
"""

import json
import re
import runpy
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from typer.main import get_command

from floatscope.cli import app
from floatscope.decode import SAMPLERS, Sampler
from floatscope.decode.presets import all_samplers, presets
from floatscope.glossary import load_glossary
from floatscope.interventions import INTERVENTIONS
from floatscope.measures import MEASURES
from floatscope.models import FAMILIES
from floatscope.statistics import STATISTICS
from floatscope.studies import STUDIES, Request
from floatscope.studies.claim import CONTROL, THETA, Number, format_number
from floatscope.studies.study import by_default
from floatscope.studies.verdict import CAUSAL, LITERATURE, Rule

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARKED = re.compile(r"(<!-- generated: (.+?) -->)(.*?)(<!-- end -->)", re.S)
WORDS = "no one two three four five six seven eight nine ten eleven twelve".split()
COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


def table(*rows: tuple[str, ...]) -> str:
    """Markdown; the first row is the head."""
    head, *rest = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *rest]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def first_line(thing: Any) -> str:
    return str(thing.__doc__).strip().splitlines()[0]


def papers(thing: Any) -> str:
    """The arXiv numbers that a docstring names."""
    return ", ".join(dict.fromkeys(re.findall(r"\b\d{4}\.\d{5}\b", str(thing.__doc__))))


def own_fields(cls: Any, base: Any = None) -> str:
    """Beside a base: those it does not have, or has with another default."""
    common = {(f.name, f.default) for f in fields(base)} if base else ()
    own = (f for f in fields(cls) if (f.name, f.default) not in common)
    return ", ".join(f"`{f.name}={f.default!r}`" for f in own)


def shown(value: Any) -> str:
    """A default as one would type it."""
    if value is True or value is False:
        return "yes" if value else "no"
    several = isinstance(value, tuple | list)
    text = ", ".join(map(str, value)) if several else str(value)
    return f"`{text}`" if value is not None and text else "–"


def flags(command: str) -> str:
    """A command's options; for `study` a default that the flag leaves open is the request's."""
    asked = {name: f.get_default() for name, f in Request.model_fields.items()}
    rows = []
    for one in COMMANDS[command].params:
        if getattr(one, "hidden", False):
            continue
        names = [*one.opts, *one.secondary_opts]
        default = asked.get(one.name) if command == "study" and one.default is None else one.default
        if one.param_type_name == "argument":
            names = [one.name.upper()]
        must = one.required and default is None
        text = (
            (one.help or "")
            .replace("; may be repeated", "")
            .replace(" May repeat.", "")
            .rstrip(".")
        )
        text += "; may be repeated" if one.multiple else ""
        rows.append(
            (", ".join(f"`{n}`" for n in names), "required" if must else shown(default), text)
        )
    return table(("option", "default", "what it says"), *rows)


def commands() -> Iterator[tuple[str, str]]:
    for name, command in COMMANDS.items():
        yield f"[`{name}`](#{name})", (command.help or "").strip().splitlines()[0]


def samplers() -> Iterator[tuple[str, ...]]:
    for name, cls in SAMPLERS.items():
        own = own_fields(cls, Sampler) or "–"
        yield f"`{cls.__name__}`", f"`{name}`", first_line(cls), own, papers(cls) or "–"


def compared() -> Iterator[tuple[str, ...]]:
    """The presets at 64 tokens, one per step."""
    made = all_samplers(64)
    for name, preset in presets(64, None).items():
        yield f"`{name}`", f"`{made[name].describe()}`", preset.source


def measures() -> Iterator[tuple[str, ...]]:
    for name, cls in MEASURES.items():
        page = f"{cls.__module__.rpartition('.')[2]}.md"
        yield f"[`{cls.__name__}`]({page})", f"`{name}`", first_line(cls)


def interventions() -> Iterator[tuple[str, ...]]:
    for name, cls in INTERVENTIONS.items():
        yield f"`{cls.__name__}`", f"`{name}`", first_line(cls), own_fields(cls)


def families() -> Iterator[tuple[str, ...]]:
    for one in FAMILIES.values():
        mask = "–" if one.mask_id is None else str(one.mask_id)
        network = one.network_class.__name__.removesuffix("ForCausalLM")
        row = "row i" if not one.shift else f"row i − {one.shift}"
        names = ", ".join(f"`{name}`" for name in one.architectures)
        yield one.name, one.examples, names, network, str(one.direction), row, mask


def tested() -> Iterator[tuple[str, ...]]:
    """What is done with each family, and what that was tested against."""
    for one in FAMILIES.values():
        yield one.name, one.examples, *one.about.values()


def coverage() -> Iterator[tuple[str, ...]]:
    """Of bench/coverage.json: in percent, at 95 % and at 99.5 %, for 8, 20 and 40 examples."""
    found: dict[tuple[str, str], dict[tuple[float, int], Any]] = {}
    for row in json.loads((ROOT / "bench" / "coverage.json").read_text(encoding="utf-8"))["rows"]:
        found.setdefault((row["kind"], row["name"]), {})[row["level"], row["n"]] = row
    for (kind, name), rows in found.items():
        shown = [
            " / ".join(f"{100 * rows[level, n][what]:.1f}" for n in (8, 20, 40))
            if what in rows[level, 8]
            else "–"
            for level, what in ((0.95, "covers"), (0.995, "covers"), (0.95, "bootstrap"))
        ]
        marks = (" †" if rows[0.95, 8]["failed"] else "") + (" ‡" if rows[0.95, 8]["short"] else "")
        yield kind, name + marks, *shown


def studies() -> Iterator[tuple[str, str, str]]:
    for name, one in STUDIES.items():
        called = f"`{name}`, by name" if one.by_name else f"`{name}`"
        yield called, one.question, ", ".join(map(str, one.decides)) or "none"


def claims() -> Iterator[tuple[str, str, str]]:
    for rule in _rules(LITERATURE):
        yield str(rule.number), rule.text, rule.words()


def causal() -> Iterator[tuple[str, str, str]]:
    for rule in _rules(CAUSAL):
        yield str(rule.number), rule.text, rule.words()


def _rules(family: str) -> list[Rule]:
    return [rule for one in STUDIES.values() for rule in one.rules if rule.family == family]


def findings() -> Iterator[tuple[str, ...]]:
    """The claims of the run behind docs/explanation/findings.md."""
    summary = json.loads((ROOT / "docs" / "findings_claims.json").read_text())
    for claim in summary["claims"]:
        primary = [n for n in claim["numbers"] if n.get("role") == THETA]
        theta = Number(**primary[0]) if primary else None
        untrained = [n for n in claim["numbers"] if n.get("role") == CONTROL]
        yield (
            str(claim["number"]),
            claim["text"],
            f"**{claim['verdict']}**",
            format_number(replace(theta, null=None)) if theta else "–",
            format_number(replace(Number(**untrained[0]), null=None)) if untrained else "–",
            str(theta.n) if theta else "–",
            ", ".join(
                f"{v['choice']}: {v['verdict']}"
                for v in claim["variants"]
                if v["verdict"] != claim["verdict"]
            )
            or "none",
        )


def supported() -> Iterator[tuple[str, str]]:
    """The README's list: what there is of each kind, and where to read on."""
    lists: dict[str, list[str]] = {
        "[statistics](docs/reference/statistics.md)": STATISTICS.builtin,
        "[samplers](docs/reference/decoding.md)": [cls.__name__ for cls in SAMPLERS.values()],
        "[measures](docs/reference/measures/index.md)": [cls.__name__ for cls in MEASURES.values()],
        "[interventions](docs/reference/interventions.md)": [
            c.__name__ for c in INTERVENTIONS.values()
        ],
        "[studies](docs/reference/studies.md)": list(STUDIES),
    }
    for kind, names in lists.items():
        yield kind, ", ".join(f"`{name}`" for name in names)


def numbered(thing: str) -> str:
    """How many there are, as a word."""
    things: dict[str, Any] = {
        "claims": {rule.number for rule in _rules(LITERATURE)},
        "causal claims": {rule.number for rule in _rules(CAUSAL)},
        "families": FAMILIES,
        "interventions": INTERVENTIONS,
        "measures": MEASURES,
        "samplers": SAMPLERS,
        "statistics": set(STATISTICS.builtin),
        "studies": by_default(STUDIES),
        "studies by name": set(STUDIES) - set(by_default(STUDIES)),
    }
    n = len(things[thing])
    return WORDS[n] if n < len(WORDS) else str(n)


def reference(kind: str) -> str:
    """The API page's entries of a library, where each class is defined."""
    libraries: dict[str, Any] = {
        "interventions": INTERVENTIONS,
        "measures": MEASURES,
        "samplers": SAMPLERS,
    }
    every = libraries[kind].values()
    entries = [
        f"::: {c.__module__}.{c.__name__}\n    options: {{ members: false, inherited_members: false }}"
        for c in every
    ]
    return "\n" + "\n\n".join(entries) + "\n"


def gallery() -> str:
    """Return the gallery's figures with the lines that draw them, from docs/make_gallery.py."""
    text: str = runpy.run_path(str(ROOT / "docs" / "make_gallery.py"))["page"]()
    return f"\n{text}\n"


def glossary() -> str:
    """Return a heading and a paragraph for every term."""
    entries = []
    for term, entry in load_glossary().items():
        title = {"δ": "δ (delta)", "θ": "θ (theta)"}.get(term, term)
        lines = [f"## {title[0].upper()}{title[1:]}", entry["definition"]]
        if "more" in entry:
            page = (ROOT / "docs" / "reference" / entry["more"]).resolve()
            heading = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            lines[-1] += f" More: [{heading}]({entry['more']})."
        entries.append("\n\n".join(lines))
    return "\n" + "\n\n".join(entries) + "\n"


HEADS = {
    coverage: ("kind", "of", "95 %", "99.5 %", "95 %, bootstrap"),
    commands: ("command", "what it does"),
    claims: ("#", "claim", "how it is decided"),
    causal: ("#", "question, as a claim", "how it is decided"),
    findings: ("#", "claim", "verdict", "θ", "untrained", "n", "what another choice would change"),
    samplers: ("sampler", "on the command line", "rule", "own fields", "paper"),
    compared: ("preset", "for 64 tokens", "settings from"),
    measures: ("measure", "on the command line", "what it says"),
    interventions: ("intervention", "on the command line", "what it does", "fields"),
    families: (
        *("family", "for example", "`architectures`", "network"),
        *("attention", "position i is predicted by", "mask id if nothing says"),
    ),
    tested: ("family", "for example", *next(iter(FAMILIES.values())).about),
    studies: ("study", "asks", "claims"),
    supported: ("kind", "names"),
}


def made(name: str) -> str:
    """Return what a marker stands for.

    `name` is that of a table, `flags COMMAND`, `glossary`, `gallery`, `api LIBRARY` or `number of THINGS`.
    """
    kind, _, rest = name.partition(" ")
    if kind == "flags":
        return flags(rest)
    if kind == "glossary":
        return glossary()
    if kind == "gallery":
        return gallery()
    if kind == "api":
        return reference(rest)
    if kind == "number":
        return numbered(rest.removeprefix("of "))
    for rows, head in HEADS.items():
        if rows.__name__ == name:
            return table(head, *rows())
    raise SystemExit(f"nothing is generated under the name {name!r}; see docs/generate.py")


def written(page: Path) -> str:
    """The page with everything between markers made anew."""

    def again(match: re.Match[str]) -> str:
        opens, name, before, ends = match.groups()
        line = "\n" if before.startswith("\n") else ""
        return f"{opens}{line}{made(name)}{line}{ends}"

    return MARKED.sub(again, page.read_text(encoding="utf-8"))


def main() -> None:
    stale = {
        page: new for page in PAGES if (new := written(page)) != page.read_text(encoding="utf-8")
    }
    if "--check" in sys.argv and stale:
        names = ", ".join(str(page.relative_to(ROOT)) for page in stale)
        raise SystemExit(
            f"what the package registers is not what these pages list: {names}\n"
            "Run `python docs/generate.py` and commit what it writes."
        )
    for page, text in stale.items():
        page.write_text(text, encoding="utf-8")
        print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

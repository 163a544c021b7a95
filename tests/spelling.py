"""Find misspelled words, American spelling, phrases that the project avoids, and sentences that are too long.

    python -m tests.spelling      # every finding, with its file and line

It reads the Markdown pages and the docstrings of the package. Code is left out: fenced blocks, code spans,
addresses of links, and HTML. `codespell` reads whole
files, comments included; its settings are in pyproject.toml.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "BENCHMARKS.md")
OF_MODELS = frozenset({"twin_texts.md"})  # what models wrote
LONGEST = 60  # words in a sentence

PHRASES = (
    *(
        "intervals that cover",
        "comes with it",
        "ours and theirs",
        "hand on the page",
        "what is said",
    ),
    *("overhear", "overheard", "overhearing", "overhears", "seam", "seams", "nobody's"),
)
# The same word in both countries, or another word of British English.
NOT_AMERICAN = frozenset(
    """ass barbecue catalog check checks curb disk disks draft drafts jail license licensed licenses maneuver
    meter meters orient oriented practice practiced practices practicing program programs routing
    biased biases biasing math story stories tire tires""".split()
)
# Nouns of the field, spelled as transformers and torch spell them.
OF_THE_FIELD = frozenset(
    "optimizer optimizers tokenizer tokenizers initializer initializers".split()
)
# `that that` and `had had` are grammar.
MAY_REPEAT = frozenset({"that", "had"})

_CODE = re.compile(r"(?<!`)(`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)\1(?!`)", re.S)
_FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1`* *$", re.M | re.S)
_HIDDEN = re.compile(r"<!--.*?-->|<[^<>\n]+>|\]\([^)\s]*\)|https?://\S+|\$\$.*?\$\$", re.S)
_BULLET = re.compile(r"(?:[-*+] |\d+\. |#+ |> |\|)")
_ENTRY = re.compile(r"\s*[*`\w][\w*`., ]*(?: \(.*?\))?: ")  # `name: what it is`, in a docstring
_END = re.compile(r"(?<=[.!?])[\"'”’)\]*_]*\s+(?=[\"'“‘(\[*_]*[A-ZÀ-Þ0-9·])")
_QUOTED = re.compile(r"[\"“][^\"“”\n]{1,60}[\"”]")  # an example of a text, not our own words
_DOUBLE = re.compile(r"\b([^\W\d_]+)[ \t]*[ \t\n][ \t]*(\1)\b", re.I)
_WORD = re.compile(r"[^\W\d_][\w'’-]*")


@dataclass(frozen=True)
class Finding:
    """A place in a file, and what is wrong there."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        name = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{name}:{self.line}: {self.text}"


def pages() -> list[Path]:
    """List the Markdown pages of the project."""
    docs = (page for page in (ROOT / "docs").rglob("*.md") if page.name not in OF_MODELS)
    return [*(ROOT / name for name in PAGES), *sorted(docs)]


def modules() -> list[Path]:
    """List the Python files of the package."""
    return sorted((ROOT / "src").rglob("*.py"))


def misspelled(paths: Iterable[Path]) -> list[str]:
    """Run codespell and return its findings, one line each."""
    command = [sys.executable, "-m", "codespell_lib", *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.stderr:
        raise RuntimeError(done.stderr)
    return done.stdout.splitlines()


def findings(paths: Iterable[Path]) -> Iterator[Finding]:
    """Check the prose of pages and modules for spelling, phrases, double words and long sentences."""
    for path in paths:
        text = path.read_text("utf-8")
        for first, prose in docstrings(text) if path.suffix == ".py" else [(1, text)]:
            for line, what in check(prose):
                yield Finding(path, first + line, what)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield every docstring of a module with the number of its first line."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def check(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what is wrong) for Markdown; lines count from 0."""
    prose = without_code(text)
    own = _QUOTED.sub(_dots, prose)
    for pattern, what in (
        (_phrases(), "avoid the phrase {0!r}"),
        (_american(), "American spelling: {0}"),
        (_DOUBLE, "double word: {0}"),
    ):
        for match in pattern.finditer(own):
            if pattern is not _DOUBLE or _is_slip(*match.groups()):
                shown = re.sub(r"\s+", " ", match[0])
                yield prose.count("\n", 0, match.start()), what.format(shown)
    for line, sentence in sentences(prose):
        count = len(_WORD.findall(sentence))
        if count > LONGEST:
            yield line, f"{count} words in one sentence: {sentence[:70]}…"


def _is_slip(first: str, second: str) -> bool:
    """Whether a repeated word is a mistake, and neither grammar nor a name before its noun."""
    return second in (first, first.lower()) and not first.isupper() and second not in MAY_REPEAT


def without_code(text: str) -> str:
    """Blank what is not prose, and keep every line break."""
    return _HIDDEN.sub(_blank, _CODE.sub(_dots, _FENCE.sub(_blank, text)))


def _dots(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "·", match[0])


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def sentences(prose: str) -> Iterator[tuple[int, str]]:
    """Yield each sentence with its line; a list item, heading or entry begins a new one, tables have none."""
    held: list[tuple[int, str]] = []
    for number, line in enumerate([*prose.splitlines(), ""]):
        begins = not line.strip() or _BULLET.match(line.lstrip()) or _ENTRY.match(line)
        if begins and held:
            yield from ((held[0][0], part) for part in _END.split(" ".join(s for _, s in held)))
            held = []
        if line.strip() and not line.lstrip().startswith("|"):
            held.append((number, line.strip()))


@cache
def _phrases() -> re.Pattern[str]:
    words = "|".join(re.escape(phrase).replace(r"\ ", r"\s+") for phrase in PHRASES)
    return re.compile(rf"\b(?:{words})\b", re.I)


@cache
def _american() -> re.Pattern[str]:
    """Match the American spellings that codespell's table of British ones names."""
    table = files("codespell_lib") / "data" / "dictionary_en-GB_to_en-US.txt"
    pairs = (line.split("->") for line in table.read_text("utf-8").splitlines())
    british, american = (set(words) for words in zip(*pairs, strict=True))
    american = {word for entry in american for word in re.split(r",\s*", entry) if word} - british
    words = sorted(american - NOT_AMERICAN - OF_THE_FIELD, key=len, reverse=True)
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b", re.I)


def main() -> None:
    """Print every finding."""
    paths = [*pages(), *modules()]
    print(*misspelled(paths), *findings(paths), sep="\n")


if __name__ == "__main__":
    main()

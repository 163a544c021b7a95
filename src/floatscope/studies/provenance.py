"""What a run read beside its models: data files and plugins, by checksum, and the folder of its paths.

Models have fingerprints, in every shard. Files are read whole and hashed; nothing is copied. A run is
repeated from its run.json: the request as it was stored, in the folder where its paths lead somewhere.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import RunError, UsageError
from ..models.spec import ModelSpec
from .request import Request, as_stored

DATA, PLUGINS, FOLDER = "data", "plugins", "folder"


def read_by(request: Request) -> dict[str, Any]:
    """For run.json: sha256 of every data file and plugin file, and where relative paths begin."""
    parts = (request, *request.also)
    return {
        DATA: _digests(part.data for part in parts),
        PLUGINS: _digests(plugin for part in parts for plugin in part.plugins),
        FOLDER: os.getcwd(),
    }


def require_same_data(before: Mapping[str, Any], now: Mapping[str, Any], where: Path) -> None:
    """A run goes on with the data it was begun with, or not at all."""
    for name, digest in before.get(DATA, {}).items():
        if now[DATA].get(name, digest) != digest:
            raise RunError(
                f"{name} has changed since {where} was begun (sha256 was {digest[:12]}…)",
                "Put the file back, or choose another --out.",
            )


def is_run(fields: Mapping[str, Any]) -> bool:
    """What was read is a run.json, and not a request somebody wrote."""
    return {"schema", "worker", "request", "fingerprint"} <= fields.keys()


def repeated(
    run: Mapping[str, Any], where: Path, given: Mapping[str, Any]
) -> tuple[dict[str, Any], Path]:
    """The fields of a run.json, and the folder in which its paths lead somewhere: this one, or its own.

    `given` are fields that come before them: data that are not asked for need not be there.
    """
    fields = as_stored({**run["request"], **given})
    if run["request"].get("plugins") and not given.get("plugins"):
        # A plugin is never imported because a file names it: it may be anyone's.
        plugins = " ".join(f"--plugin {plugin}" for plugin in run["request"]["plugins"])
        raise UsageError(f"{where} was run with {plugins}", "Say so again, if you trust it.")
    return fields, folder_of(run.get("about", {}), fields, where)


def folder_of(about: Mapping[str, Any], fields: Mapping[str, Any], where: Path) -> Path:
    """Where all that a request reads is, unchanged: here, or where the run was made."""
    used = {part["data"] for part in (fields, *fields.get("also", ()))}
    told = {path: digest for path, digest in about.get(DATA, {}).items() if path in used}
    told |= about.get(PLUGINS, {})
    made_in = Path(str(about.get(FOLDER, ".")))
    wanted = [*told, *_models(fields, made_in)]
    missing = [path for path in wanted if not Path(path).expanduser().exists()]
    folder = made_in if missing else Path()
    if missing and not all((folder / Path(path).expanduser()).exists() for path in wanted):
        moved = (
            "Put it there again (a link will do), or say with --model or --data where it is now."
            if Path(missing[0]).expanduser().is_absolute()
            else f"Do it in the folder that has it; the run was made in {folder}."
        )
        raise UsageError(f"{where}: {missing[0]}, which the run read, is not here", moved)
    for path, digest in told.items():
        if _digest(folder / Path(path).expanduser()) != digest:
            raise UsageError(
                f"{where}: {path} is not what the run read (sha256 was {digest[:12]}…)",
                "Put that file back; or give other data to a run of its own.",
            )
    return folder


def _models(fields: Mapping[str, Any], made_in: Path) -> list[str]:
    """Paths of models and adapters; names of embedded models and hub ids are none.

    What looks like a name is a path if it was one where the run was made: `adapted` for `./adapted`.
    """
    parts = (fields, *fields.get("also", ()))
    specs = [ModelSpec.parse(text) for part in parts for text in part["models"]]
    paths = [spec.where for spec in specs] + [spec.adapter for spec in specs if spec.adapter]
    return [
        path
        for path in paths
        if path.startswith((".", "/", "~")) or path.endswith(".gguf") or (made_in / path).exists()
    ]


def _digests(paths: Any) -> dict[str, str]:
    files = [path for path in dict.fromkeys(paths) if Path(path).expanduser().is_file()]
    return {path: _digest(Path(path).expanduser()) for path in files}


def _digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()

"""Find the folder to which a run's paths are relative, and compute checksums of the run's files.

A run is repeated from the request in its run.json. The paths in the request are relative to the working
directory or, if files are missing there, to the folder where the run was made. Files are read completely and
hashed; no file is copied. Models are identified by fingerprints, which workers store with every shard.
"""

import hashlib
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..engine.directory import require_run
from ..errors import UsageError
from ..models.spec import ModelSpec, located
from ..untrusted import Unreadable, exists, opened
from .request import Request, parts_of, request_of

DATA, PLUGIN, FOLDER = "data ", "plugin ", "folder"  # prefixes of sources; a field of `about`


def file_digests(request: Request, folder: Path) -> dict[str, str]:
    """Return the sha256 of every data file and plugin file in a request, by the name of the source."""
    parts = (request, *request.extra_runs)
    plugins = [plugin for part in parts for plugin in part.plugins]
    return data_digests(parts, folder) | plugin_digests(plugins)


def plugin_digests(plugins: Iterable[str]) -> dict[str, str]:
    """Return the sha256 of each plugin's file, under the key "plugin " + the plugin as given in the request.

    The file of a module is the one that Python would import. Plugins without a file are left out.
    """
    files = {plugin: _plugin_file(plugin) for plugin in dict.fromkeys(plugins)}
    return {PLUGIN + name: _digest(file) for name, file in files.items() if file is not None}


def _plugin_file(plugin: str) -> Path | None:
    path = Path(plugin).expanduser()
    if path.suffix != ".py":
        try:
            spec = find_spec(plugin)
        except (ImportError, ValueError):
            return None
        path = Path(spec.origin) if spec is not None and spec.origin else path
    return path if path.is_file() else None


def data_digests(parts: Iterable[Request], folder: Path) -> dict[str, str]:
    """Return the sha256 of each file of records or of token frequencies, under the key "data " + its path.

    The path is written as in the request. Paths without a file are left out.
    """
    named = [path for part in parts for path in (part.data, part.frequencies) if path]
    files = {path: Path(located(path, folder)).expanduser() for path in dict.fromkeys(named)}
    return {DATA + path: _digest(file) for path, file in files.items() if file.is_file()}


def is_run(fields: Mapping[str, Any]) -> bool:
    """Return whether fields come from a run.json rather than from a request written by hand."""
    return {"schema", "worker", "request", "fingerprint"} <= fields.keys()


def without_plugins(
    fields: Mapping[str, Any], overrides: Mapping[str, Any], where: Path
) -> dict[str, Any]:
    """Return the fields of a request's file without the field `plugins`, also in its extra runs.

    A plugin is Python code that runs as the user, and the file may be untrusted. Therefore only plugins that
    the command line names are loaded. `overrides` has the fields from the command line. Raise an error if the
    file names plugins and `overrides` names none.
    """
    lists = [part["plugins"] for part in parts_of(fields) if part.get("plugins")]
    named = [
        str(plugin)
        for plugins in lists
        for plugin in (plugins if isinstance(plugins, list) else [plugins])
    ]
    if named and not overrides.get("plugins"):
        flags = " ".join(f"--plugin {plugin}" for plugin in dict.fromkeys(named))
        raise UsageError(
            f"{where} names plugins, which are Python code that runs as you",
            f"Give them on the command line, if you trust them: {flags}.",
        )
    main, *extra = [{k: v for k, v in part.items() if k != "plugins"} for part in parts_of(fields)]
    return {**main, "extra_runs": extra} if extra else main


def repeated(
    run: Mapping[str, Any], where: Path, overrides: Mapping[str, Any]
) -> tuple[dict[str, Any], Path]:
    """Return the fields of the request in a run.json, and the folder to which its paths are relative.

    The fields in `overrides` replace fields of the request. If a field is replaced, the file that it named
    need not exist.
    """
    run = require_run(dict(run), where)
    fields = {**without_plugins(run["request"], overrides, where), **overrides}
    return fields, folder_of(run, request_of(fields, str(where)), where)


def folder_of(run: Mapping[str, Any], request: Request, where: Path) -> Path:
    """Return the folder to which a run's paths are relative; refuse files that are missing or changed.

    The folder is the working directory or, if a path does not exist there, the folder where the run was made.
    """
    used = {part.data for part in (request, *request.extra_runs)}
    sources = run.get("sources", {})
    digests = {name.removeprefix(DATA): sources[name] for name in sources if name.startswith(DATA)}
    digests = {path: digest for path, digest in digests.items() if path in used}
    plugins = {n.removeprefix(PLUGIN): sources[n] for n in sources if n.startswith(PLUGIN)}
    digests |= {name: digest for name, digest in plugins.items() if name.endswith(".py")}
    made_in = Path(str(run.get("about", {}).get(FOLDER, ".")))
    paths = [*digests, *_models(request, made_in)]
    missing = [path for path in paths if not exists(path)]
    folder = made_in if missing else Path()
    if missing and not all(exists(located(path, folder)) for path in paths):
        moved = (
            "Restore it (a link is enough), or give its new path with --model or --data."
            if missing[0].startswith(("/", "~"))
            else f"Run the command in the folder that has it; the run was made in {folder}."
        )
        raise UsageError(f"{where}: {missing[0]}, which the run read, is not here", moved)
    for path, digest in digests.items():
        if _digest(Path(located(path, folder)).expanduser()) != digest:
            raise UsageError(
                f"{where}: {path} is not what the run read (sha256 was {digest[:12]}…)",
                "Restore that file, or use a new run for other data.",
            )
    return folder


def _models(request: Request, made_in: Path) -> list[str]:
    """Return the paths of a request's models and adapters, without names of embedded models and hub ids.

    A spec that looks like a name, such as `adapted`, counts as a path if it exists in the folder `made_in`,
    where the run was made.
    """
    parts = (request, *request.extra_runs)
    specs = [ModelSpec.parse(text) for part in parts for text in part.models]
    paths = [spec.where for spec in specs] + [spec.adapter for spec in specs if spec.adapter]
    return [
        path
        for path in paths
        if path.startswith((".", "/", "~")) or path.endswith(".gguf") or exists(made_in / path)
    ]


def _digest(path: Path) -> str:
    try:
        with opened(path) as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except (FileNotFoundError, Unreadable) as error:
        raise UsageError(f"{path} cannot be read: {error}", "Give the path of a file.") from error

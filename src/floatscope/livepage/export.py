"""Export runs: a saved trace as one file, or several runs as one page that opens without a server."""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ..report.embed import viewer_page
from ..scenes.pack import scene_of
from ..trace import Trace

_BUDGET = 3_000_000  # characters of a run on an exported page


def zipped(store: Path) -> bytes:
    """Return a store as one zip file without further compression, because its arrays are compressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(store.rglob("*")):
            if file.is_file():
                archive.write(file, Path(store.name) / file.relative_to(store))
    return buffer.getvalue()


def exported(traces: Sequence[Trace], names: Sequence[str], title: str) -> str:
    """Return one offline page with the viewer; runs of one prompt are shown side by side."""
    scenes = []
    for trace, name in zip(traces, names, strict=True):
        scene = scene_of(trace, budget=_BUDGET)
        scene["model"]["model"] = name
        scenes.append(scene)
    return viewer_page(scenes, title)

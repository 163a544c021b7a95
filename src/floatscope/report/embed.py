"""The viewer with its data as HTML: a fragment for a page, a page of its own, a frame for a notebook.

Nothing is fetched: style, script and scenes are inside. Data stands in JSON script elements with every
"<" escaped, and the script puts text into the page as text nodes, so that no text can become markup.
"""

import html
import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from itertools import count
from typing import Any

from ..scenes.pack import scene_of
from ..scenes.parts import Scene
from ..trace import Trace

_SCRIPTS = (
    "viewer_data",
    "viewer_colour",
    "viewer_parts",
    "viewer_panel",
    "viewer",
    "viewer_start",
)
_numbers = count(1)
OFFLINE = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_NOTEBOOK_BUDGET = 3_000_000
_MOST_NAMED = 40  # steps named one by one


@cache
def asset(name: str) -> str:
    """A file of the pages, such as viewer.css: the viewer's style, all of it under the class `fsv`."""
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """The viewer's JavaScript, in a scope of its own; it sets window.floatscopeViewer."""
    parts = [asset(f"{name}.js") for name in _SCRIPTS]
    return '(() => {\n"use strict";\n' + "\n".join(parts) + "})();\n"


def assets() -> str:
    """Style and script, once per page."""
    return f"<style>{asset('viewer.css')}</style>\n<script>{script()}</script>\n"


def as_json(value: Any) -> str:
    """JSON that can stand inside a script element: no "<", so no end tag and no comment."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def index_of(scenes: Iterable[Scene], ids: Iterable[str | int]) -> dict[str, Any]:
    """Which scenes there are, grouped by example, in order of appearance."""
    examples: dict[str, dict[str, Any]] = {}
    for scene, number in zip(scenes, ids, strict=True):
        example = examples.setdefault(
            scene["example"], {"id": scene["example"], "title": scene["title"], "scenes": []}
        )
        example["scenes"].append(
            {
                "id": number,
                "model": scene["model"]["model"],
                "direction": scene["model"]["direction"],
                "range": scene["range"],
            }
        )
    for example in examples.values():  # diffusion models first, then causal ones
        example["scenes"].sort(key=lambda scene: scene["direction"] == "causal")
    return {"examples": list(examples.values())}


def fragment(
    scenes: Sequence[Scene],
    *,
    name: str | None = None,
    with_assets: bool = True,
    keys: bool = False,
    toggle: bool = True,
) -> str:
    """The viewer for these scenes, to be put anywhere into a page's body.

    Args:
        scenes: of `scene_of`; those of one example are shown together.
        name: the element's id, unique on the page; made up if not given.
        with_assets: False where the page already holds `assets()`, before this fragment.
        keys: take arrow keys and space pressed anywhere on the page: where the viewer is alone on it.
        toggle: show a switch between light and dark; False where the page has its own.
    """
    name = name or f"floatscope-{next(_numbers)}"
    if not name.replace("-", "").replace("_", "").isalnum():
        raise ValueError(f"{name!r} cannot be an id: use letters, digits, - and _")
    index = index_of(scenes, range(len(scenes))) | {"keys": keys, "toggle": toggle}
    data = [("index", index), *((f"scene-{i}", scene) for i, scene in enumerate(scenes))]
    return "".join(
        [
            assets() if with_assets else "",
            f'<div id="{name}"></div>\n',
            "<noscript>The viewer needs JavaScript; the data is in this file.</noscript>\n",
            *(
                f'<script type="application/json" id="{name}-{part}">{as_json(value)}</script>\n'
                for part, value in data
            ),
            f'<script>floatscopeEmbedded("{name}");</script>\n',
        ]
    )


def page(title: str, body: str, *, policy: str | None = OFFLINE) -> str:
    """A whole document around a body that is already HTML. The policy forbids every request."""
    shown = html.escape(title)
    guard = f'<meta http-equiv="Content-Security-Policy" content="{policy}">' if policy else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{guard}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{shown}</title>'
        f"<style>{asset('viewer_page.css')}</style></head>\n"
        f"<body><main><h1>{shown}</h1>\n{body}</main></body></html>\n"
    )


def viewer_page(scenes: Sequence[Scene], title: str) -> str:
    """A page that is the viewer and nothing else, in one file."""
    return page(title, fragment(scenes, name="viewer", keys=True))


def notebook(traces: Sequence[Trace], *, height: int = 760) -> str:
    """Return an isolated iframe for a notebook; its scripts cannot reach the notebook or other frames."""
    scenes = [scene_of(trace, budget=_NOTEBOOK_BUDGET) for trace in traces]
    for scene in scenes:
        scene["left_out"] += _rest(scene)
    names = " and ".join(dict.fromkeys(str(trace.info["model"]) for trace in traces))
    inside = html.escape(viewer_page(scenes, f"Floatscope: {names}"), quote=True)
    label = html.escape(f"Attention of {names}", quote=True)
    return (
        f'<iframe title="{label}" sandbox="allow-scripts" srcdoc="{inside}" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )


def _rest(scene: Scene) -> list[str]:
    """Which steps have single heads, and what to type for the others; nothing where all have them."""
    kept = scene["single_heads"]["kept"] if scene["single_heads"] else []
    if len(kept) == len(scene["steps"]):
        return []
    numbers = [str(scene["steps"][i] + 1) for i in kept]  # as the viewer counts
    if len(numbers) > _MOST_NAMED:
        numbers = [*numbers[:3], "…", numbers[-1]]
    named = [f"those are steps {', '.join(numbers)}"] if numbers else []
    return [
        *named,
        'for all of them type trace.save("traces/this.zarr") here and floatscope view traces in a terminal',
    ]

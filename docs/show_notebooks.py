"""Notebooks as pages of the documentation: a hook of mkdocs, which makes Markdown of what is stored in them.

Nothing runs here; `run_notebooks.py` put the outputs there. The notebook itself can be downloaded.
"""

import base64
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            path = Path(str(file.abs_src_path))
            text, pictures = page(json.loads(path.read_text(encoding="utf-8")), path.stem)
            made: dict[str, str | bytes] = {f"{path.stem}.md": text, **pictures}
            for name, content in made.items():
                uri = file.src_uri.replace(path.name, name)
                files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to a notebook lead to its page here, and to the file where the repository is read."""
    return re.sub(r"(\]\([\w./]+)\.ipynb\)", r"\1.md)", markdown)


def page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """Markdown, and its pictures by their names."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        shell = source.startswith("!")
        parts.append(_fenced(source.removeprefix("!"), "bash" if shell else "python"))
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text")})
            if "image/png" in data:
                picture = f"{name}-{len(pictures) + 1}.png"
                pictures[picture] = base64.b64decode(data["image/png"])
                parts.append(f"![What this cell draws]({picture})")
            elif "text/html" in data:
                parts.append(_table("".join(data["text/html"])))
            else:
                parts.append(_fenced("".join(data["text/plain"]), "text"))
    head, *rest = parts
    note = f'*This page is a notebook: <a href="../{name}.ipynb" download>{name}.ipynb</a>.*'
    title, _, lead = head.partition("\n")
    return "\n\n".join([title, note, lead.strip(), *rest]) + "\n", pictures


def _fenced(text: str, kind: str) -> str:
    return f"````{kind}\n{text.rstrip()}\n````"


def _table(html: str) -> str:
    """Without the style that it brings: the page has its own."""
    html = re.sub(r"<style.*?</style>\s*", "", html, flags=re.S)
    return html.replace(' border="1" class="dataframe"', "").replace(
        ' style="text-align: right;"', ""
    )

"""The embedded pair cut to its first layers: the same names, tokenizer and weights, in less time.

For tests of what is done with the pair, where it does not matter how well it does it.
"""

import json
import re
import shutil

from safetensors import safe_open
from safetensors.torch import save_file

from floatscope.models.pair import FOLDER, PAIR

LAYERS = 2


def written(folder):
    """A directory per model of the pair, by its name."""
    return {name: _cut(FOLDER / name.removeprefix("pair/"), folder / name) for name in PAIR}


def _cut(whole, path):
    shutil.copytree(whole, path, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    config = json.loads((whole / "config.json").read_text())
    (depth,) = {"n_layers", "num_hidden_layers"} & config.keys()
    (path / "config.json").write_text(json.dumps(config | {depth: LAYERS}))
    with safe_open(whole / "model.safetensors", "pt") as file:
        kept = {key: file.get_tensor(key) for key in file.keys() if _layer(key) < LAYERS}  # noqa: SIM118
    save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    return path


def _layer(key):
    """Which layer a weight belongs to; what belongs to none comes before all."""
    found = re.search(r"\.(?:blocks|layers)\.(\d+)\.", key)
    return int(found[1]) if found else -1

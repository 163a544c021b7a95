"""What the training scripts share: the world, loaded by path, and the special tokens.

The training machine needs torch, numpy, tokenizers and safetensors, and none of the package's
other dependencies. So the world is loaded from its folder, without importing `floatscope`.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
WORLD_DIR = ROOT / "src" / "floatscope" / "tasks" / "world"
TOKENIZER = Path(__file__).resolve().parent / "tokenizer.json"

SPECIALS = ("<bos>", "<eos>", "<pad>", "<mask>")
BOS, EOS, PAD, MASK = range(4)
VOCAB = 8192
CONTEXT = 1024  # the longest context in training


class UsageError(SystemExit):
    """Something the caller must give; printed without a traceback."""

    def __init__(self, message: str) -> None:
        super().__init__(f"error: {message}")


def load_world() -> ModuleType:
    """The world package under the name `floatscope_world`."""
    name = "floatscope_world"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, WORLD_DIR / "__init__.py", submodule_search_locations=[str(WORLD_DIR)]
        )
        if spec is None or spec.loader is None:
            raise UsageError(f"no world package in {WORLD_DIR}: run from a full checkout")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]

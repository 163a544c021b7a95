"""Adapters: LoRA in PEFT's format, merged into the base weights when a model is loaded.

An adapter is a directory with adapter_config.json and adapter_model.safetensors. It may also contain
selfcheck.json (logits that the merged model must reproduce) and floatscope.json (see `stated`). PEFT is
not needed.
"""

from typing import TYPE_CHECKING

from ..._lazy import lazily

if TYPE_CHECKING:
    from .files import Adapter, read, write
    from .merging import merge
    from .selfcheck import reproduce, write_selfcheck

lazily(__name__)

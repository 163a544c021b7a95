"""Adapters: LoRA in PEFT's format, merged into a base's weights when it is loaded.

An adapter is a directory with adapter_config.json and adapter_model.safetensors; it may hold
selfcheck.json (logits that the merged model must give again) and floatscope.json (see `stated`).
PEFT itself is not needed. Nothing here knows where a base comes from.
"""

from typing import TYPE_CHECKING

from ..._lazy import lazily

if TYPE_CHECKING:
    from .files import Adapter, read, write
    from .merging import merge
    from .selfcheck import reproduce, write_selfcheck

lazily(__name__)

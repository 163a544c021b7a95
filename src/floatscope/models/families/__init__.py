"""The list of all families, in display order. Each family is defined in its own file of this package.

An architecture is looked up in the families in this order; families after the match are not imported.
"""

from typing import TYPE_CHECKING

from ..._lazy import lazily
from ...registry import FAMILIES

if TYPE_CHECKING:
    from .llada import LLADA
    from .dream import DREAM
    from .llama import LLAMA
    from .qwen2 import QWEN2
    from .qwen3 import QWEN3
    from .llada_moe import LLADA_MOE
    from .rnd1 import RND1
    from .llada2 import LLADA2
    from .sdar import SDAR
    from .sdar_moe import SDAR_MOE
    from .fast_dllm import FAST_DLLM
    from .nemotron import NEMOTRON
    from .a2d import A2D_QWEN3, A2D_QWEN2, A2D_LLAMA
    from .encoders import BERT, ROBERTA, ALBERT, DISTILBERT, MODERNBERT

_CALLED = {
    "LLADA_MOE": "llada-moe",
    "SDAR_MOE": "sdar-moe",
    "FAST_DLLM": "fast-dllm",
    "A2D_QWEN3": "a2d-qwen3",
    "A2D_QWEN2": "a2d-qwen2",
    "A2D_LLAMA": "a2d-llama",
}
FAMILIES.offer(__name__, lazily(__name__), called=_CALLED)

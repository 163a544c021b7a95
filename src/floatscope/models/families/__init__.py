"""The families: one file each, one line here, in the order in which lists show them."""

from typing import TYPE_CHECKING

from ..._lazy import lazily
from ..family import FAMILIES

if TYPE_CHECKING:
    from .llada import LLADA
    from .dream import DREAM
    from .llama import LLAMA
    from .qwen2 import QWEN2
    from .qwen3 import QWEN3

FAMILIES.offer(__name__, lazily(__name__))

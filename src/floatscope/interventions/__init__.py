"""Interventions: controlled changes of a model while it decodes.

```python
with MaskColumns(k=5)(model):
    trace = model.trace(...)  # shows the attention as changed
```

An intervention is a dataclass whose fields are its settings. Calling it on a model puts it in force
while a `with` block runs. The call first checks, on a random text, that the intervention changes the
model's predictions. When the `with` block ends, the model is as before.
"""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .base import Combined, Intervention
    from .branching import ablated_each
    from .head_outputs import HeadMeans, HeadRows
    from .library import *
    from .library import INTERVENTIONS
    from .masking import DoesNotFit
    from .patch_source import PatchSource
    from .swapping import Swap, patched_each

lazily(__name__)

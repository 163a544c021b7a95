"""Studies: each measures models to answer a question, and may decide claims about the models.

A run turns a request into a plan of shards, computes the shards, and derives findings from the shards.
"""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .claim import Claim, Number
    from .draw import Picture
    from .findings import Findings
    from .library import STUDIES
    from .request import Request, read_request, request_of
    from .setting import Setting
    from .study import Study
    from .verdict import Rule, judge

lazily(__name__)

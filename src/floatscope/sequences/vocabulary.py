"""What text needs to know of a model: its tokenizer, and which tokens are special. No network."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Vocabulary(Protocol):
    """A Model is one."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def chat(self) -> bool: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def mask_id(self) -> int | None: ...
    @property
    def special_ids(self) -> frozenset[int]: ...

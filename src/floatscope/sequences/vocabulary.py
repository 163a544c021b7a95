"""Protocols of the facts about a model that prompts and samplers need, such as its tokenizer and direction.

All of these facts are known before any weights are read.
"""

from typing import Any, Protocol, runtime_checkable

from .direction import Direction, Grid


@runtime_checkable
class Vocabulary(Protocol):
    """The tokenizer and special tokens of a model. Every Model implements this protocol."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def chat(self) -> bool: ...
    @property
    def template_arguments(self) -> dict[str, Any]: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def mask_id(self) -> int | None: ...
    @property
    def special_ids(self) -> frozenset[int]: ...


@runtime_checkable
class ModelFacts(Vocabulary, Protocol):
    """The facts about a model that samplers need. Models with and without weights implement it."""

    @property
    def direction(self) -> Direction: ...
    @property
    def block(self) -> int | None: ...
    @property
    def grid(self) -> Grid: ...
    @property
    def is_diffusion(self) -> bool: ...
    @property
    def end_ids(self) -> tuple[int, ...]: ...
    @property
    def context(self) -> int: ...

"""Questions, passages and prompts: what a model is asked."""

from .ask import prompt_of

__all__ = ["prompt_of"]

"""Traces, their storage on disk, and their display in a terminal or notebook. Does not import torch."""

from .trace import Trace, readable

__all__ = ["Trace", "readable"]

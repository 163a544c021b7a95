"""Prompts with named parts, their tokens and token classes, and results of decodings, without torch."""

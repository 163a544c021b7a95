"""Prompts with named parts, their tokens and token classes, and the result of a decoding. No torch."""

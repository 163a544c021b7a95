"""Prompts with named parts, their tokens and token classes, and decoding results. Does not import torch."""

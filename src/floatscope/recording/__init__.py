"""Combine captured tensors and decoding decisions into step records and a Trace."""

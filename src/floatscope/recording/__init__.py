"""Combine captured tensors with the decisions of a decoding into step records and a Trace."""

"""Scenes: what the viewer shows of one example and one model, encoded as JSON. Never imports torch."""

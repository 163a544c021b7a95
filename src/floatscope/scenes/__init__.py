"""Scenes: the data that the viewer shows for one example and one model, as JSON, without importing torch."""

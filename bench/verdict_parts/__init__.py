"""Planted truths: for each claim, evidence in which it is true, or false, and the verdict it earns."""

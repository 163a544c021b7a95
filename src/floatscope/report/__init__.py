"""Build reports: the viewer and the pages around it. Torch is never imported."""

"""Build reports: the viewer and the pages around it. This package does not import torch."""

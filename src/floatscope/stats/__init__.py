"""Numbers about numbers: anchors, intervals, chance, uniform attention. No torch, no xarray."""

"""Statistics on plain arrays: anchors, intervals, chance levels, uniform attention. No torch, no xarray."""

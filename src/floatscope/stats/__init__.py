"""Statistics on plain arrays, without torch or xarray: anchors, intervals, chance, uniform attention."""

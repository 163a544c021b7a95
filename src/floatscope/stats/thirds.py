"""Select the first third of the layers ("shallow") and the last third ("deep") for all measures."""


def thirds(n_layers: int) -> dict[str, slice]:
    """Return the slices of the first and the last third of the layers by name, each at least one layer."""
    size = max(1, n_layers // 3)
    return {"first": slice(0, size), "last": slice(n_layers - size, n_layers)}

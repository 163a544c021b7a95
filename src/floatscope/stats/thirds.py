"""The first and the last third of the layers: what "shallow" and "deep" mean everywhere."""


def thirds(n_layers: int) -> dict[str, slice]:
    """`first` and `last`, one layer each at least."""
    size = max(1, n_layers // 3)
    return {"first": slice(0, size), "last": slice(n_layers - size, n_layers)}

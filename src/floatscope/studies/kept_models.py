"""Models that a worker keeps between shards: small ones together, a large one alone."""

from pathlib import Path
from typing import Any

from ..instrument import Model, load
from ..models.permuted import PERMUTED
from ..models.spec import ModelSpec

ROOM = 2_000_000_000  # bytes of parameters


class KeptModels:
    """The oldest go when the next, taken to be as large as the largest so far, would not fit in ROOM.

    Relative paths begin at `folder`, by default the working directory.
    """

    def __init__(self, folder: Path = Path()) -> None:
        self.folder = folder
        self.kept: dict[tuple[str, str | None, str, int | None], Model] = {}

    def get(self, name: str, device: str | None, dtype: str, control: int | None) -> Model:
        """The trained model, or its untrained control of this seed."""
        key = name, device, dtype, control
        if key not in self.kept:
            self._make_room()
            where: dict[str, Any] = {"device": device, "dtype": dtype}
            if control is not None:
                where |= {"weights": PERMUTED, "seed": control}
            spec = ModelSpec.parse(name)
            there = spec.located(self.folder)
            self.kept[key] = model = load(there, **where)
            model.name = model.name.replace(
                there.label, spec.label, 1
            )  # as the run's request has it
        return self.kept[key]

    def _make_room(self) -> None:
        sizes = {key: _size(model) for key, model in self.kept.items()}
        next_one = max(sizes.values(), default=0)
        while self.kept and sum(sizes[key] for key in self.kept) + next_one > ROOM:
            del self.kept[next(iter(self.kept))]


def _size(model: Model) -> int:
    return sum(p.numel() * p.element_size() for p in model.net.parameters())

"""The models that a worker keeps between shards: several small ones, or a large one with one control."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..instrument import Model, load
from ..models.permuted import PERMUTED, named, refill
from ..models.spec import ModelSpec

ROOM = 2_000_000_000  # bytes of parameters
Key = tuple[str, str | None, str, int | None]  # name, device, dtype, and the seed of a control


class KeptModels:
    """A cache of models. The oldest are dropped if the next model would not fit into ROOM.

    The next model is assumed to be as large as the largest so far. A trained model is kept beside its
    control in any case, because a shard needs both. If there is no room for a second control, the network of
    the first gets the weights of the other seed, which are permuted from the trained model's, so that a run
    loads a control only once; the first control can then no longer be used. Paths are relative to
    `folder`, by default the working directory.
    """

    def __init__(self, folder: Path = Path()) -> None:
        self.folder = folder
        self.models: dict[Key, Model] = {}

    def get(self, name: str, device: str | None, dtype: str, control: int | None) -> Model:
        """Return the trained model, or its untrained control with this seed."""
        key = name, device, dtype, control
        if key not in self.models:
            model = self._refilled(key) if self._full() else None
            self.models[key] = model or self._loaded(key)
        return self.models[key]

    def _full(self) -> bool:
        nets = [model.net for model in self.models.values()]
        sizes = [sum(p.numel() * p.element_size() for p in net.parameters()) for net in nets]
        return sum(sizes) + max(sizes, default=0) > ROOM

    def _refilled(self, key: Key) -> Model | None:
        """Make a control from another control of the same model, if both are in memory."""
        *model_key, seed = key
        trained = self.models.get((*model_key, None))  # type: ignore[arg-type]
        other = next((k for k in self.models if [*k[:3]] == model_key and k[3] is not None), None)
        if trained is None or other is None or seed is None:
            return None
        before = self.models.pop(other)
        refill(before.net, trained.net, seed)
        model = replace(before, name=named(trained.name, seed))
        del before.net
        return model

    def _loaded(self, key: Key) -> Model:
        name, device, dtype, control = key
        while self._full():
            evictable = [
                k
                for k in self.models
                if k[:3] != key[:3] or (control is not None and k[3] is not None)
            ]
            if not evictable:
                break
            del self.models[evictable[0]]
        how: dict[str, Any] = {"device": device, "dtype": dtype}
        if control is not None:
            how |= {"weights": PERMUTED, "seed": control}
        spec = ModelSpec.parse(name)
        located_spec = spec.located(self.folder)
        model = load(located_spec, **how)
        # Models are named as in the run's request.
        model.name = model.name.replace(located_spec.label, spec.label, 1)
        return model

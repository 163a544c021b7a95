"""Keep models in memory between shards: several small models, or a large model and one control."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..instrument import Model, load
from ..models.permuted import PERMUTED, named, refill
from ..models.spec import ModelSpec

ROOM = 2_000_000_000  # bytes of parameters
Key = tuple[str, str | None, str, int | None]  # name, device, dtype, and the seed of a control


class KeptModels:
    """A cache of models, which drops the oldest models if the next model would not fit into ROOM.

    The next model is assumed to be as large as the largest model in the cache. A trained model and its
    control are kept together even if both exceed ROOM, because a shard needs both. If there is no room for a
    second control, the network of the first control is filled with the trained weights, permuted by the
    second seed. The network of a control is then loaded only once per run, and the first control can no
    longer be used. Paths of models are relative to `folder`, by default the working directory.
    """

    def __init__(self, folder: Path = Path()) -> None:
        self.folder = folder
        self.models: dict[Key, Model] = {}

    def get(self, name: str, device: str | None, dtype: str, control: int | None) -> Model:
        """Return the trained model or, with a seed in `control`, its untrained control; load it if needed."""
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
        """Turn another control in memory into the control `key`, by permuting weights into its network.

        The weights are those of the trained model. Return None if `key` is a trained model, or if the trained
        model or another control is not in memory.
        """
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

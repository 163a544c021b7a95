"""The families with tiny random checkpoints, and what decodes each. From the registry: a new family is
tested by being registered."""

import floatscope as fs
from floatscope.models import FAMILIES as REGISTERED
from floatscope.models import Direction, tiny

FAMILIES = tuple(family.name for family in REGISTERED.values())
CAUSAL = tuple(f.name for f in REGISTERED.values() if f.direction is Direction.CAUSAL)
DIFFUSION = tuple(name for name in FAMILIES if name not in CAUSAL)


def written(folder):
    return {name: tiny.write(name, folder / name) for name in FAMILIES}


def sampler_for(model, length=8, steps=4):
    """What fits the model."""
    if model.is_diffusion:
        return fs.Confidence(length=length, steps=steps)
    return fs.Autoregressive(length=length, stop_at_eos=False)

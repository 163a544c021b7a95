"""The families with tiny random checkpoints, and what decodes each.

Five of them stand for all in the matrices of many tests: each way of seeing, of shifting logits and of naming
tensors is among them. `test_families.py` takes every registered family through what is its own.
"""

import floatscope as fs
from floatscope.decode import SAMPLERS
from floatscope.models import FAMILIES as REGISTERED
from floatscope.models import Direction, tiny

FAMILIES = ("LLaDA", "Dream", "Llama", "Qwen2", "Qwen3")
CAUSAL = tuple(n for n in FAMILIES if REGISTERED[n.lower()].direction is Direction.CAUSAL)
DIFFUSION = tuple(name for name in FAMILIES if name not in CAUSAL)

DENOISING = {
    name: kind
    for name, kind in SAMPLERS.items()
    if kind is not fs.Autoregressive and not kind.needs_blocks
}
# Every sampler as it comes, and with the settings that take another way through the code.
EVERY = {name: kind(length=8) for name, kind in DENOISING.items()} | {
    "confidence, few steps": fs.Confidence(length=8, steps=4),
    "confidence, blocks": fs.Confidence(length=8, steps=6, block_length=4),
    "entropy, few steps": fs.samplers.Entropy(length=8, steps=3),
    "random, few steps": fs.samplers.Random(length=8, steps=4, seed=3),
    "threshold, low": fs.samplers.Threshold(length=8, threshold=0.05),
    "threshold, blocks": fs.samplers.Threshold(length=8, threshold=0.05, block_length=4),
    "factor": fs.samplers.Threshold(length=8, factor=0.99),
    "entropy-bound, wide": fs.samplers.EntropyBound(length=8, gamma=3.0),
    "attention-guided, wide": fs.samplers.AttentionGuided(
        length=8, tau_max=1.0, variant="direct", layers=0
    ),
    "position-calibrated, blocks": fs.samplers.PositionCalibrated(
        length=8, steps=4, block_length=4
    ),
    "remask, more steps": fs.samplers.Remask(length=8, steps=12),
    "remask, blocks": fs.samplers.Remask(length=8, steps=16, block_length=4, by="confidence"),
    "dream, cold": fs.samplers.Dream(length=8, steps=4, temperature=0, alg="topk_margin"),
    "dream, by chance": fs.samplers.Dream(
        length=8, steps=5, temperature=1.0, alg="origin", top_k=20
    ),
    "dream, blocks": fs.samplers.Dream(
        length=8, block_length=4, alg="maskgit_plus", alg_temp=0.1, seed=2
    ),
    "remdm, more steps": fs.samplers.ReMDM(length=8, steps=24, eta=0.1),
    "remdm, blocks": fs.samplers.ReMDM(length=8, steps=40, block_length=4, temperature=0.5, seed=4),
    "ends last": fs.Confidence(length=8, steps=4, end_last=True, no_eos=True),
    "warm": fs.Confidence(length=8, steps=4, temperature=1.0, seed=5),
    "guided": fs.Confidence(length=8, steps=4, cfg=1.5),
    "warm random": fs.samplers.Random(length=8, steps=4, temperature=0.7, seed=1),
}


def written(folder):
    return {name: tiny.write(name, folder / name) for name in FAMILIES}


def sampler_for(model, length=8, steps=4):
    """What fits the model."""
    if model.is_diffusion:
        return fs.Confidence(length=length, steps=steps)
    return fs.Autoregressive(length=length, stop_at_eos=False)

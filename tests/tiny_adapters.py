"""A small adapter, in the package's own writing."""

import torch

from floatscope.models import adapters


def handmade(model, folder, rank=4, seed=1, token=259, **options):
    """Of every linear map, the last norm and one new token."""
    torch.manual_seed(seed)
    tensors = {
        "model.norm.weight": torch.rand(32) + 0.5,
        "model.embed_tokens.token_adapter.trainable_tokens_delta": torch.randn(1, 32),
    }
    for name, module in model.net.named_modules():
        if isinstance(module, torch.nn.Linear) and "layers" in name:
            tensors[f"{name}.lora_A.weight"] = 0.1 * torch.randn(rank, module.in_features)
            tensors[f"{name}.lora_B.weight"] = 0.1 * torch.randn(module.out_features, rank)
    config = {"r": rank, "lora_alpha": 8, "trainable_token_indices": {"embed_tokens": [token]}}
    return adapters.write(folder, tensors, config, **options)

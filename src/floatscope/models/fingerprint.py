"""Compute a fingerprint of a network's weights, the same on every device, in one pass with little memory.

Hashing 16 GB byte by byte on a CPU takes half a minute. Integer sums modulo 2^64 do not depend on the
order of the terms or on the device, so each tensor is summed on its device and only the sums are hashed.
The fingerprint distinguishes models and detects damage; it does not protect against forged weights.
"""

import hashlib
import json
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

_CHUNK = 1 << 22
_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _sums(tensor: Tensor) -> tuple[int, int]:
    """Return the plain and the position-weighted sum of a tensor's raw bits, modulo 2^64.

    The position-weighted sum changes if two elements are swapped.
    """
    bits = tensor.detach().contiguous().view(-1).view(_INTEGER[tensor.element_size()])
    plain = torch.zeros((), dtype=torch.int64, device=tensor.device)
    weighted = torch.zeros_like(plain)
    for start in range(0, bits.numel(), _CHUNK):
        chunk = bits[start : start + _CHUNK].to(torch.int64)
        place = torch.arange(start, start + len(chunk), device=tensor.device) * 2 + 1
        plain += chunk.sum()
        weighted += (chunk * place).sum()
    return int(plain), int(weighted)


def fingerprint(net: nn.Module) -> str:
    """Hash name, shape, dtype and bits of every stored tensor to 16 hexadecimal digits.

    Stored tensors are the network's parameters and persistent buffers.
    """
    digest = hashlib.blake2b(digest_size=8)
    stored = net.state_dict().keys()
    buffers = [(name, tensor) for name, tensor in net.named_buffers() if name in stored]
    for name, tensor in sorted([*net.named_parameters(), *buffers]):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {_sums(tensor)}\n".encode())
    return digest.hexdigest()


def settings_fingerprint(facts: tuple[Any, ...], config: PretrainedConfig, tokenizer: Any) -> str:
    """Hash a model's facts, config, tokenizer and chat template to 64 hexadecimal digits.

    Paths, versions and the tokenizer's padding and truncation state are not included.
    """
    fields = config.to_diff_dict()
    fields = {k: v for k, v in fields.items() if k not in ("_name_or_path", "transformers_version")}
    text: Any = None
    if tokenizer is not None:
        text = [tokenizer.special_tokens_map, tokenizer.chat_template]
        backend = getattr(tokenizer, "backend_tokenizer", None)
        state = tokenizer.get_vocab() if backend is None else json.loads(backend.to_str())
        text.append({k: v for k, v in state.items() if k not in ("padding", "truncation")})
    summary = json.dumps([facts, fields, text], sort_keys=True, default=str)
    return hashlib.sha256(summary.encode("utf-8", "backslashreplace")).hexdigest()

"""Dream as the bidirectional Qwen2 it is, by transformers alone: its weights have Qwen2's names.

Dream's own code comes with the checkpoint and fails on transformers 5; the logits are the same.
"""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()


def load(folder: Path, attention: str) -> Any:
    raw = json.loads((folder / "config.json").read_text())
    for name in ("architectures", "model_type", "auto_map"):
        del raw[name]
    rope = {"rope_type": "default", "rope_theta": raw.pop("rope_theta")}
    net, info = Qwen2ForCausalLM.from_pretrained(
        folder,
        config=Qwen2Config(**raw, rope_parameters=rope, is_causal=False),
        attn_implementation=attention,
        dtype=torch.float32,
        output_loading_info=True,
    )
    if any(info.values()):
        raise SystemExit(f"The checkpoint does not fit Qwen2: {info}. Remove it and run again.")
    return net.eval()

"""A run's folder: its record, and a state from which training goes on exactly.

run.json says what was asked; state.safetensors holds weights and optimizer moments; both are
replaced whole, never half written. No pickle.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from training.common import UsageError
from training.model import Config, Model


def save(
    folder: Path, model: Model, optimizer: torch.optim.Optimizer, record: dict[str, Any]
) -> None:
    tensors = {}
    for name, p in model.named_parameters():
        tensors[f"weight.{name}"] = p.detach()
        for moment in ("exp_avg", "exp_avg_sq"):
            if p in optimizer.state:
                tensors[f"{moment}.{name}"] = optimizer.state[p][moment]
    part = folder / "state.part"
    save_file(
        {k: v.cpu().contiguous() for k, v in tensors.items()},
        part,
        metadata={"record": json.dumps(record)},
    )
    part.rename(folder / "state.safetensors")
    (folder / "run.json").write_text(json.dumps(record, indent=1) + "\n")


def read_record(folder: Path) -> dict[str, Any]:
    path = folder / "state.safetensors"
    if not path.is_file():
        raise UsageError(f"no state.safetensors in {folder}: nothing to go on from")
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["record"])


def restore(folder: Path, model: Model, optimizer: torch.optim.Optimizer | None, step: int) -> None:
    with safe_open(folder / "state.safetensors", "pt") as file:
        for name, p in model.named_parameters():
            with torch.no_grad():
                p.copy_(file.get_tensor(f"weight.{name}"))
            if optimizer is not None and step:
                # The fused optimizer wants its step count on the parameter's device.
                fused = optimizer.defaults.get("fused")
                optimizer.state[p] = {
                    "step": torch.tensor(float(step), device=p.device if fused else "cpu"),
                    **{
                        m: file.get_tensor(f"{m}.{name}").to(p.device)
                        for m in ("exp_avg", "exp_avg_sq")
                    },
                }


def load_model(folder: Path) -> Model:
    """The model of a run's folder, in float32 on the CPU."""
    record = read_record(folder)
    model = Model(Config(**record["config"]), causal=record["objective"] == "arm")
    restore(folder, model, None, record["step"])
    return model

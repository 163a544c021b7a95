"""Trains one model of the pair. One script, two objectives; nothing else differs.

    python -m training.train --objective mdm --corpus CORPUS --out trained/mdm --seconds 500
    python -m training.train --objective arm --corpus CORPUS --out trained/arm --steps N
    python -m training.train --objective mdm --device cpu --smoke --out DIR      (a minute, for CI)

The budget is a number of steps, each of the same number of tokens: give --steps or --tokens; or
--seconds, and the number that fits is fixed from the measured speed, long before the learning rate
starts to fall, and written to run.json for the other model to be given. A run that is stopped goes
on with --resume: data and masks are functions of (seed, step).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from training import state
from training.common import UsageError
from training.data import SHARD, SMOKE, Feeder, Plan
from training.evaluate import evaluate
from training.export import export, load_exported, pieces
from training.model import Config, Model
from training.objectives import OBJECTIVES, Loss, arm_targets, mdm_inputs, mdm_mask, unpack
from training.probes import Probe, Tables
from training.rows import Encoder
from training.sdpa import any_shape, choose_attention

SMOKE_CONFIG = Config(layers=2, width=64, heads=4, hidden=128)
MAX_STEPS = 40_000  # a bound on the data written when the budget is given in seconds


@dataclass(frozen=True)
class Recipe:
    lr: float = 1.5e-3
    warmup: int = 300
    decay: float = 0.3  # share of the steps over which the rate falls to 0, at the end
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0

    def rate(self, step: int, total: int | None) -> float:
        rate = self.lr * min(1.0, (step + 1) / self.warmup)
        if total is not None:
            rate *= min(1.0, (total - step) / max(1.0, self.decay * total))
        return rate


class Trainer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.began, self.args = time.monotonic(), args
        self.device = torch.device(args.device)
        self.plan = replace(SMOKE if args.smoke else Plan(), seed=args.seed)
        recipe = Recipe(warmup=20, lr=3e-3) if args.smoke else Recipe()
        self.recipe = replace(recipe, seed=args.seed)
        self.config = SMOKE_CONFIG if args.smoke else Config()
        # Smoke batches have few rows: give every masked position a place.
        self.loss = Loss(prefix=args.prefix, capacity=1.0 if args.smoke else Loss.capacity)
        args.out.mkdir(parents=True, exist_ok=True)
        self.step = 0
        self.total: int | None = args.steps or (
            args.tokens // self.plan.tokens if args.tokens else None
        )
        if args.resume:
            record = state.read_record(args.out)
            asked = {"objective": args.objective, "config": asdict(self.config)}
            asked["recipe"] = json.loads(json.dumps(asdict(self.recipe)))  # as a file has it
            for key, mine in asked.items():
                if record[key] != mine:
                    raise UsageError(
                        f"{args.out} holds {key} {record[key]}, not {mine}: "
                        "give the --out of the run to go on with"
                    )
            self.step, self.total = record["step"], self.total or record["total_steps"]
        elif (args.out / "state.safetensors").exists():
            raise UsageError(f"{args.out} holds a run: give --resume, or another --out")

    def build(self) -> None:
        cuda = self.device.type == "cuda"
        dtype = torch.bfloat16 if cuda else torch.float32
        self.model = Model(self.config, causal=self.args.objective == "arm", dtype=dtype)
        self.model.init(self.recipe.seed).to(self.device)
        parameters = list(self.model.parameters())
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if p.dim() == 2]},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=self.recipe.lr,
            betas=self.recipe.betas,
            weight_decay=self.recipe.weight_decay,
            fused=cuda,
        )
        if self.args.resume:
            state.restore(self.args.out, self.model, self.optimizer, self.step)
        if cuda:
            torch.set_float32_matmul_precision("high")
            print(choose_attention(self.args.attention, self.model, self.plan), flush=True)
            if not self.args.no_compile:
                self.model.compile()

    def record(self) -> dict[str, Any]:
        count = sum(p.numel() for p in self.model.parameters())
        return {
            "objective": self.args.objective,
            "step": self.step,
            "total_steps": self.total,
            "tokens": self.step * self.plan.tokens,
            "parameters": count,
            "config": asdict(self.config),
            "plan": asdict(self.plan),
            "recipe": asdict(self.recipe),
            "loss": asdict(self.loss),
            "torch": torch.__version__,
            "device": self.device_name(),
            "seconds": round(time.monotonic() - self.began, 1),
        }

    def device_name(self) -> str:
        return torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu"

    def forward(self, cells: torch.Tensor) -> torch.Tensor:
        ids, roles = unpack(cells)
        if self.args.objective == "arm":
            return self.model.loss(self.model.hidden(ids), *arm_targets(ids, roles, self.loss))
        g = torch.Generator(device=self.device)
        g.manual_seed(self.recipe.seed * 1_000_003 + self.step)
        masked, weight = mdm_mask(ids, roles, self.loss, g, self.loss.prefix_share(self.step))
        inputs, at, target, weight = mdm_inputs(ids, masked, weight, self.loss)
        return self.model.loss(self.model.hidden(inputs).index_select(0, at), target, weight)

    def update(self, cells: torch.Tensor) -> torch.Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate(self.step, self.total)
        loss = self.forward(cells)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.detach()

    def batches(self, feeder: Feeder) -> Iterator[torch.Tensor]:
        """Cells of step after step, (rows, length), a shard at a time on the device."""
        index, shard = -1, torch.empty(0)
        while True:
            if self.step // SHARD != index:
                index = self.step // SHARD
                shard = torch.from_numpy(feeder.shard(index).view("int16")).to(self.device)
            yield shard[self.step % SHARD].view(-1, self.plan.length(self.step))

    def fix_budget(self, marks: list[tuple[int, float]]) -> None:
        """With --seconds: once two fifths are gone, settle how many steps there will be."""
        now, seconds = time.monotonic(), self.args.seconds
        if self.total is not None or now - self.began < 0.4 * seconds:
            return
        recent = [m for m in marks if m[0] >= max(self.plan.easy_steps, marks[-1][0] // 2)]
        first = recent[0] if len(recent) > 1 else marks[0]
        rate = (self.step - first[0]) / (now - first[1])
        self.total = self.step + int(0.985 * rate * (seconds - (now - self.began)))
        self.total = min(self.total, MAX_STEPS)
        print(
            f"budget fixed at step {self.step}: {self.total} steps, "
            f"{self.total * self.plan.tokens / 1e6:.0f}M tokens",
            flush=True,
        )

    def train(self, feeder: Feeder) -> bool:
        """True when the budget is used up, False when the time limit came first."""
        args, every = self.args, self.args.probe_every
        probe = Probe(
            args.data,
            Encoder(),
            rows=4 if args.smoke else 12,
            questions=32 if args.smoke else 192,
            length=128 if args.smoke else 256,
        )
        tables = Tables(args.out, self.step)
        self.probe(probe, tables, math.nan)
        batches = self.batches(feeder)
        running, saved = torch.zeros((), device=self.device), time.monotonic()
        marks, count = [(self.step, time.monotonic())], 0
        while self.total is None or self.step < self.total:
            running += self.update(next(batches))
            count += 1
            if self.step % args.log_every == 0 or self.step == self.total:
                mean, now = float(running) / count, time.monotonic()
                if not math.isfinite(mean):
                    raise RuntimeError(
                        f"the loss is {mean} at step {self.step}: stopped; the last "
                        f"state in {args.out} is sound"
                    )
                rate = (self.step - marks[-1][0]) * self.plan.tokens / (now - marks[-1][1])
                print(
                    f"step {self.step}/{self.total or '?'} loss {mean:.4f} "
                    f"{rate / 1e6:.2f}M tokens/s {now - self.began:.0f} s",
                    flush=True,
                )
                marks.append((self.step, now))
                if args.seconds:
                    self.fix_budget(marks)
                running.zero_()
                count = 0
                if self.step % every == 0 or self.step == self.total:
                    self.probe(probe, tables, mean)
                if now - saved > args.save_seconds:
                    state.save(args.out, self.model, self.optimizer, self.record())
                    saved = now
                if args.limit and now - self.began > args.limit and self.step != self.total:
                    state.save(args.out, self.model, self.optimizer, self.record())
                    return False
        state.save(args.out, self.model, self.optimizer, self.record())
        return True

    def probe(self, probe: Probe, tables: Tables, train_loss: float) -> None:
        began = time.monotonic()
        with any_shape():
            rows, curve = probe.measure(
                self.model, self.step, self.step * self.plan.tokens, train_loss
            )
        tables.add(rows, curve)
        world = [r for r in rows if r["domain"] == "world"]
        first = sum(r["position0_share"] for r in world) / len(world)
        print(
            f"  probe {self.step}: answers {100 * curve['answer_accuracy']:.1f} % "
            f"loss {curve['answer_loss']:.3f} natural {curve['natural_loss']:.3f} "
            f"position 0 {100 * first:.1f} % ({time.monotonic() - began:.1f} s)",
            flush=True,
        )

    def finish(self) -> None:
        """Round to bf16, write the release folder and its pieces, evaluate what was written."""
        args = self.args
        export(self.model, args.out / "release")
        model = load_exported(args.out / "release").to(self.device)
        model.dtype = self.model.dtype
        if args.pieces:
            pieces(args.out / "release", args.pieces, args.objective)
            self.ship()
        with any_shape():
            results = evaluate(
                model,
                args.data,
                n=args.eval_n,
                seconds=args.eval_seconds,
                rows=8 if args.smoke else 96,
                samples=0 if args.smoke else 3,
            )
        results["run"] = self.record()
        (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        if args.pieces:
            self.ship()

    def ship(self) -> None:
        """Small files beside the pieces, so that one folder holds everything."""
        for name in ("run.json", "results.json", "emergence.csv", "curve.csv"):
            if (self.args.out / name).exists():
                target = self.args.pieces / f"{self.args.objective}-{name}"
                target.write_bytes((self.args.out / name).read_bytes())


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--objective", choices=OBJECTIVES, required=True)
    parser.add_argument("--corpus", type=Path, help="folder with the natural text")
    parser.add_argument("--out", type=Path, required=True, help="the run's folder")
    parser.add_argument("--data", type=Path, help="folder for prepared data (default: OUT/data)")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument(
        "--seed", type=int, default=0, help="of first weights, masks and the order of data"
    )
    parser.add_argument("--seconds", type=float, help="fix the budget from the measured speed")
    parser.add_argument("--limit", type=float, help="stop and save after so many seconds")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--smoke", action="store_true", help="a tiny model and budget, for tests")
    parser.add_argument(
        "--prefix",
        type=float,
        default=Loss.prefix,
        help="diffusion: share of answers with a shown prefix at the start",
    )
    parser.add_argument("--attention", choices=("auto", "flash", "cudnn"), default="auto")
    parser.add_argument("--no-compile", action="store_true", help="about half the speed")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--probe-every", type=int, default=500)
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--save-seconds", type=float, default=120.0)
    parser.add_argument("--pieces", type=Path, help="folder for the release cut into pieces")
    parser.add_argument("--eval-n", type=int, default=300)
    parser.add_argument("--eval-seconds", type=float, default=60.0)
    args = parser.parse_args(argv)
    args.data = args.data or args.out / "data"
    if args.smoke and not (args.steps or args.tokens or args.seconds or args.resume):
        args.steps = 200
    if not (args.steps or args.tokens or args.seconds or args.resume):
        raise UsageError("no budget: give --steps, --tokens or --seconds")
    if args.corpus is None:
        raise UsageError(
            "no corpus: give --corpus a folder with books.txt.xz and wikipedia_summaries.json.xz"
        )
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "no GPU that PyTorch can see: run on a machine with one, or give "
            "--device cpu --smoke for a small trial"
        )
    if args.device == "cpu" and not args.smoke:
        raise UsageError("the whole training needs a GPU: give --smoke with --device cpu")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    trainer = Trainer(args)
    steps = trainer.total or MAX_STEPS
    with Feeder(
        args.corpus,
        args.data,
        trainer.plan,
        steps=steps,
        workers=args.workers,
        start=trainer.step,
        smoke=args.smoke,
    ) as feeder:
        trainer.build()
        print(
            f"{args.objective}: {sum(p.numel() for p in trainer.model.parameters())} parameters, "
            f"ready after {time.monotonic() - trainer.began:.0f} s",
            flush=True,
        )
        done = trainer.train(feeder)
    if not done:
        print(f"time limit at step {trainer.step} of {trainer.total}: go on with --resume")
        raise SystemExit(75)
    trainer.finish()


if __name__ == "__main__":
    main()

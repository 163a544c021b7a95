"""Where do heavy keys come from? Train one diffusion model from three starting points and compare.

    python -m training.heavy_keys train   --corpus CORPUS --out RUN --seeds 0 1 2
    python -m training.heavy_keys measure --out RUN --results training/heavy_keys.json
    python -m training.heavy_keys draw    --results training/heavy_keys.json --page PAGE.md

A heavy key is a key that receives a large share of the attention of masked rows. `train` trains two
causal models per seed, one whose rows begin with a start token and one whose rows begin anywhere in
the text. It then trains the same masked diffusion model from random weights (`nothing`), from the
causal model without a start token (`no-sink`) and from the causal model with one (`sink`). Within a
seed, the three see the same rows, masks and learning rates. `measure` reads the checkpoints with
Floatscope; `draw` writes the figure and fills in the tables of the page. `--shape pair --device cuda`
trains 12 layers × 256, the shape of the embedded pair.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from training.common import BOS, MASK, SPECIALS, UsageError
from training.corpus import documents
from training.export import hf_model_config, tensors
from training.model import Config, Model
from training.objectives import Loss, mdm_inputs, mdm_mask
from training.tokenizer import hf_config
from training.train import Recipe

CONDITIONS = ("nothing", "no-sink", "sink")
LONG = "-long"  # ending of a condition that is trained for several times the steps
CAUSAL = {"no-sink": "causal-plain", "sink": "causal-start"}  # what the condition begins with
USED_AS: Any = {"direction": "bidirectional", "mask_id": MASK, "shift": 1, "check": False}
ENOUGH = 5  # seeds for an interval over seeds
SEEDS = range(100)  # that are looked for in a folder
PROPORTIONS = ("moved", "is_first", "is_mask")
ROWS = ("start", "plain")  # rows of the diffusion training: with a start token, or without


@dataclass(frozen=True)
class Settings:
    """Shape, data and budget; the same for every condition."""

    layers: int = 3
    width: int = 96
    heads: int = 4
    hidden: int = 256
    vocab: int = 1024
    length: int = 80  # tokens in a row
    rows: int = 12  # in a step
    copied: float = 0.4  # of a row: a span of its first half that is repeated in its second half
    causal_steps: int = 2000
    diffusion_steps: int = 2500
    long: int = 3  # times these steps, for conditions with "-long"
    checkpoints: tuple[float, ...] = (0.0, 0.1, 0.4, 1.0)  # of the diffusion steps
    lr: float = 5e-3
    warmup: int = 100
    weight_decay: float = 0.1
    characters: int = 150_000  # at most, of each book
    prompt: int = 24  # tokens of a measured text, with the start token
    texts: int = 48  # that are decoded and measured
    controls: int = 10  # untrained networks of equal sharpness

    @property
    def config(self) -> Config:
        return Config(*(self.layers, self.width, self.heads, self.hidden, self.vocab, self.length))

    @property
    def recipe(self) -> Recipe:
        return Recipe(lr=self.lr, warmup=self.warmup, weight_decay=self.weight_decay)

    def steps(self, condition: str) -> int:
        return self.diffusion_steps * (self.long if condition.endswith(LONG) else 1)

    def saved(self, condition: str) -> list[int]:
        """Steps after which the weights are kept."""
        return [round(share * self.steps(condition)) for share in self.checkpoints]


SHAPES = {
    "small": Settings(),
    "pair": Settings(
        layers=12,
        width=256,
        heads=8,
        hidden=768,
        vocab=8192,
        length=256,
        rows=192,
        causal_steps=6000,
        diffusion_steps=6000,
        lr=0.0015,
        warmup=300,
        characters=10000000,
        prompt=64,
    ),
    "smoke": Settings(
        layers=2,
        width=16,
        heads=2,
        hidden=32,
        vocab=300,
        length=56,
        rows=2,
        causal_steps=3,
        diffusion_steps=3,
        warmup=1,
        long=2,
        checkpoints=(0.0, 1.0),
        characters=5000,
        prompt=8,
        texts=2,
        controls=3,
    ),
}


# --- Data ---------------------------------------------------------------------------------------


def prepare(corpus: Path, out: Path, settings: Settings) -> None:
    """Train a byte-level BPE on the books and write tokenizer.json, train.npy and held.npy."""
    train, held = ([d for d in docs if len(d) > 20_000] for docs in documents(corpus))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab,
        special_tokens=list(SPECIALS),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator((d[:100_000] for d in train), trainer)
    tokenizer.save(str(out / "tokenizer.json"))
    for name, docs in (("train", train), ("held", held)):
        ids = [tokenizer.encode(d[: settings.characters]).ids for d in docs]
        np.save(out / f"{name}.npy", np.concatenate(ids).astype(np.int16))


def batch(tokens: np.ndarray, settings: Settings, n: int, seed: Sequence[int], rows: str) -> Tensor:
    """Cut n rows (n, length) from the text; the same text with and without the start token.

    A span of the first half is repeated in the second half of each row. Looking the span up is useful in some
    places of a row and useless in the others, which is when a small causal model forms a sink.
    """
    rng, length = np.random.default_rng(list(seed)), settings.length
    begin = rng.integers(0, len(tokens) - length, n)
    ids = tokens[begin[:, None] + np.arange(length)].astype(np.int64)
    span, half = int(settings.copied * length), length // 2
    for row in ids:
        source, target = rng.integers(0, half - span + 1), rng.integers(half, length - span + 1)
        row[target : target + span] = row[source : source + span]
    if rows == "start":
        ids = np.concatenate((np.full((n, 1), BOS), ids[:, :-1]), 1)
    return torch.from_numpy(ids)


# --- Training -----------------------------------------------------------------------------------


def causal_loss(model: Model, ids: Tensor) -> Tensor:
    """Mean cross-entropy of next tokens."""
    hidden = model.hidden(ids).view(*ids.shape, -1)[:, :-1].reshape(-1, model.config.width)
    target = ids[:, 1:].reshape(-1)
    return model.loss(hidden, target, torch.full_like(target, 1 / len(target), dtype=torch.float32))


def diffusion_batch(ids: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(input ids, positions, targets, weights) of LLaDA's objective with right-shifted logits.

    One t per row, uniform and stratified over the batch; every token but the first is masked with probability
    t and weighs 1 / t. The output at i − 1 predicts token i, as in the causal model (and in Dream).
    """
    loss, generator = Loss(capacity=0.75), torch.Generator(ids.device).manual_seed(seed)
    masked, weight = mdm_mask(ids, torch.zeros_like(ids), loss, generator)
    inputs, at, target, weight = mdm_inputs(ids, masked, weight, loss)
    return inputs, (at - 1).clamp(min=0), target, weight


def diffusion_loss(model: Model, ids: Tensor, seed: int) -> Tensor:
    inputs, at, target, weight = diffusion_batch(ids, seed)
    return model.loss(model.hidden(inputs).index_select(0, at), target, weight)


def train(
    model: Model, settings: Settings, loss: Callable[[Model, int], Tensor], steps: int
) -> Iterator[int]:
    """Run AdamW with warm-up and linear decay; yield before the first step and after each."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    recipe = settings.recipe
    groups: list[dict[str, Any]] = [
        {"params": matrices},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups,
        lr=recipe.lr,
        betas=recipe.betas,
        weight_decay=recipe.weight_decay,
        fused=True,
    )
    yield 0
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step, steps)
        loss(model, step).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield step + 1


class Run:
    """A folder with the data, the settings and the checkpoints of all conditions."""

    def __init__(self, out: Path, settings: Settings | None = None, device: str = "cpu") -> None:
        self.out, self.device = out, device
        if settings is None:
            stored = json.loads((out / "settings.json").read_text())
            stored["checkpoints"] = tuple(stored["checkpoints"])
            settings = Settings(**stored)
        self.settings = settings

    def tokens(self, name: str) -> np.ndarray:
        return np.asarray(np.load(self.out / f"{name}.npy"))

    def path(self, name: str, seed: int, step: int | str) -> Path:
        return self.out / "weights" / f"{name}-{seed}-{step}.safetensors"

    def model(self, *, causal: bool) -> Model:
        cuda = self.device == "cuda"
        dtype = torch.bfloat16 if cuda else torch.float32
        model = Model(self.settings.config, causal=causal, dtype=dtype).to(self.device)
        return model.compile() if cuda else model

    def load(self, name: str, seed: int, step: int | str, *, causal: bool = False) -> Model:
        model = self.model(causal=causal)
        model.load_state_dict(load_file(self.path(name, seed, step)))
        return model.to(self.device)

    def train_causal(self, seed: int, name: str) -> None:
        if self.path(name, seed, "end").exists():
            return
        rows, s, tokens = name.split("-")[1], self.settings, self.tokens("train")

        def loss(model: Model, step: int) -> Tensor:
            ids = batch(tokens, s, s.rows, (seed, 0, step), rows)
            return causal_loss(model, ids.to(self.device))

        model = self.model(causal=True).init(seed)
        began = time.monotonic()
        for _ in train(model, s, loss, s.causal_steps):
            pass
        self.save(model, name, seed, "end", began)

    def train_diffusion(self, seed: int, condition: str, rows: str) -> None:
        name, s, tokens = f"{rows}-{condition}", self.settings, self.tokens("train")
        kept = s.saved(condition)
        if self.path(name, seed, kept[-1]).exists():
            return

        def loss(model: Model, step: int) -> Tensor:
            ids = batch(tokens, s, s.rows, (seed, 1, step), rows)
            return diffusion_loss(model, ids.to(self.device), seed * 1_000_003 + step)

        model = self.model(causal=False).init(seed)
        if parent := CAUSAL.get(condition.removesuffix(LONG)):
            model.load_state_dict(load_file(self.path(parent, seed, "end")))
        began = time.monotonic()
        for step in train(model, s, loss, s.steps(condition)):
            if step in kept:
                self.save(model, name, seed, step, began)

    def save(self, model: Model, name: str, seed: int, step: int | str, began: float) -> None:
        path = self.path(name, seed, step)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}, path)
        print(f"{path.stem}: {time.monotonic() - began:.0f} s", flush=True)


# --- Measurement --------------------------------------------------------------------------------


def held_rows(run: Run, n: int, rows: str) -> Tensor:
    return batch(run.tokens("held"), run.settings, n, (1, 2, 3), rows)


@torch.no_grad()
def column_shares(model: Model, inputs: Tensor, queries: Tensor) -> np.ndarray:
    """Share of each key in the attention of some rows, head mean: (text, layer, key).

    Args:
        inputs: token ids (text, position).
        queries: True at the rows that count (text, position).
    """
    found: list[np.ndarray] = []

    def look(layer: int, q: Tensor, k: Tensor) -> None:
        scores = (q.float() @ k.float().mT) / math.sqrt(q.shape[-1])  # (text, head, query, key)
        if model.causal:
            ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
            scores = scores.masked_fill(~ones.tril(), -torch.inf)
        weight = (queries / queries.sum(1, keepdim=True))[:, None, :, None]
        found.append((scores.softmax(-1) * weight).sum(2).mean(1).cpu().numpy())

    model.hidden(inputs, look=look)
    return np.stack(found, 1)


def estimate(values: np.ndarray, *, share: bool = False) -> list[list[float]]:
    """[mean, low, high] by layer of values (text, layer): 95 % intervals over texts."""
    from floatscope.stats.intervals import shares
    from floatscope.stats.intervals.student import student

    n, values = float(len(values)), values.astype(float)
    bounds = shares.share(values.sum(0), n) if share else student(values, 0.95)
    mean, low, high = (np.asarray(x, float) for x in bounds)
    low, high = np.where(np.isnan(low), mean, low), np.where(np.isnan(high), mean, high)
    return np.stack((mean, low, high), 1).round(4).tolist()


def measure_causal(run: Run, seed: int, name: str) -> dict[str, Any]:
    """Position 0 and the strongest key in rows of the second half of held-out texts."""
    model, ids = run.load(name, seed, "end", causal=True), held_rows(run, 64, name.split("-")[1])
    ids = ids.to(run.device)
    late = (torch.arange(ids.shape[1], device=ids.device) >= ids.shape[1] // 2).expand_as(ids)
    share = column_shares(model, ids, late.float())
    with torch.no_grad():
        loss = float(causal_loss(model, ids))
    uniform = float(np.mean([1 / (i + 1) for i in range(ids.shape[1] // 2, ids.shape[1])]))
    return {
        "loss": round(loss, 3),
        "uniform": round(uniform, 4),
        "first": estimate(share[:, :, 0]),
        "strongest": estimate(share.max(-1)),
    }


def instrument(model: Model, tokenizer: Path) -> Any:
    """Load the diffusion model into Floatscope: a bidirectional Llama with right-shifted logits."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    import floatscope as fs

    named = Model(model.config, causal=True)  # the same weights, under Llama's names
    named.load_state_dict(model.state_dict())
    described = hf_model_config(model.config, causal=True)
    for key in ("architectures", "model_type", "dtype"):
        described.pop(key)
    net = LlamaForCausalLM(LlamaConfig(**described)).eval()
    wrong = net.load_state_dict(tensors(named), strict=False)
    if wrong.unexpected_keys or set(wrong.missing_keys) - {"lm_head.weight"}:
        raise RuntimeError(f"weights do not fit: {wrong}")
    words = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer), **hf_config())
    net.to(model.embed.device)
    return fs.load(net, name="heavy keys", tokenizer=words, **USED_AS)


def decode(model: Any, run: Run, rows: str) -> list[Any]:
    """Let the model continue held-out texts, most confident token first, two tokens per step."""
    import floatscope as fs

    s = run.settings
    prompts = held_rows(run, s.texts, rows)[:, : s.prompt].tolist()
    length = s.length - s.prompt
    sampler = fs.Confidence(length=length, steps=length // 2, stop_at_eos=False)
    return list(model.trace(prompts, sampler, keep=["mass"], batch_size=16))


def read_masked(model: Any, traces: Sequence[Any]) -> dict[str, np.ndarray]:
    """Read five states of each decoding; the attention of masked rows, each (text, layer).

    - `moved`, `share`: of `floatscope.measures.Movement`
    - `strongest`, `first`, `other`: share of the strongest key, of position 0, and of the strongest
      key that is not position 0; mean over states
    - `is_first`, `is_mask`: share of the states in which the strongest key is position 0, or is a
      masked position
    - `head`: share of the reference key in the head where it is largest
    """
    from floatscope.measures import Movement
    from floatscope.stats.movement import UNTIL

    found: list[dict[str, np.ndarray]] = []
    for trace in traces:
        states = model.read_states(trace)
        moves = Movement().compute(states)
        groups = [str(g) for g in states.data["group"].values if str(g).startswith(UNTIL)]
        columns = []
        for state in range(states.data.sizes["step"]):
            masked = [g for g in groups if int(g.rsplit(" ")[-1]) >= state]
            share = states.at_step(state).mean_mass_from(*masked).isel(step=0)
            columns.append(share.transpose("layer", "key").values)
        shares = np.stack(columns)  # (state, layer, key)
        canvas = states.canvas.values[: len(shares)]  # (state, key)
        top = shares.argmax(-1)  # (state, layer)
        found.append(
            {
                "moved": moves["moved"].values,
                "share": moves["share"].values,
                "head": moves["share_heads"].max("head").values,
                "strongest": shares.max(-1).mean(0),
                "first": shares[..., 0].mean(0),
                "other": shares[..., 1:].max(-1).mean(0),
                "is_first": (top == 0).mean(0),
                "is_mask": (np.take_along_axis(canvas, top, 1) == MASK).mean(0),
                "token": np.take_along_axis(canvas, top, 1).T,  # (layer, state)
            }
        )
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


def summarise(found: dict[str, np.ndarray]) -> dict[str, Any]:
    """[mean, low, high] by layer for every quantity."""
    return {
        name: estimate(v, share=name in PROPORTIONS) for name, v in found.items() if v.ndim == 2
    }


def favourites(tokens: np.ndarray, model: Any, most: int = 3) -> list[list[list[Any]]]:
    """By layer: the tokens on which the strongest key lies most often, with how often."""
    names = []
    for layer in range(tokens.shape[1]):
        counts = Counter(tokens[:, layer].ravel().tolist())
        total = tokens[:, layer].size
        best = counts.most_common(most)
        names.append([[model.tokenizer.decode([i]), round(n / total, 3)] for i, n in best])
    return names


def count_moving(
    trained: dict[str, np.ndarray], controls: list[dict[str, np.ndarray]]
) -> dict[str, Any]:
    """Count the layers as claim 3 does: moving ones among those with a real anchor.

    `real_first` asks the same of position 0: does it receive more than in the controls?
    """
    from floatscope.stats.existence import real_layers
    from floatscope.stats.movement import moving_layers

    share = np.stack([one["share"] for one in controls]).astype(float)  # (network, text, layer)
    first = np.stack([one["first"] for one in controls]).astype(float)
    real = real_layers(trained["share"], share)
    moving = moving_layers(trained["moved"], real)
    return {
        "control_share": share.mean((0, 1)).round(4).tolist(),
        "control_most": share.mean(1).max(0).round(4).tolist(),
        "control_first": first.mean((0, 1)).round(4).tolist(),
        "control_first_most": first.mean(1).max(0).round(4).tolist(),
        "real": real.tolist(),
        "real_first": real_layers(trained["first"], first).tolist(),
        "moving": [int(moving.number), int(moving.low), int(moving.high)],
    }


def read_controls(model: Any, traces: Sequence[Any], n: int) -> list[dict[str, np.ndarray]]:
    """Read the same states with n untrained networks whose heads are as sharp as the trained ones.

    Sharpness is matched on masked rows in the middle of the decodings.
    """
    import floatscope as fs
    from floatscope.models.sharpened import match_sharpness, sharpened

    canvases = [trace.canvas.values[trace.canvas.shape[0] // 2] for trace in traces]
    texts = torch.from_numpy(np.stack(canvases)).long()
    found = []
    for seed in range(n):
        control = fs.load(
            model.net, tokenizer=model.tokenizer, weights="permuted", seed=seed, **USED_AS
        )
        with sharpened(control, match_sharpness(control, model, texts, texts == MASK)):
            found.append(read_masked(control, traces))
    return found


@torch.no_grad()
def move_start(model: Model, run: Run) -> dict[str, Any]:
    """Half-masked held-out texts with the start token at position 0, left out, and at a later place.

    If the heavy key is the token, attention follows it; if it is the place, attention stays at position 0.
    """
    s, where = run.settings, run.settings.prompt // 2
    text = held_rows(run, s.texts * 2, "plain")[:, : s.length - 1]
    masked = torch.zeros_like(text, dtype=torch.bool)
    masked[:, s.prompt :] = (
        torch.rand(text[:, s.prompt :].shape, generator=torch.Generator().manual_seed(0)) < 0.5
    )
    text = text.masked_fill(masked, MASK)
    start, shown = torch.full((len(text), 1), BOS), torch.zeros(len(text), 1, dtype=torch.bool)
    found: dict[str, Any] = {"place": where}
    for name, cut in (("at 0", 0), ("left out", None), ("later", where)):
        inputs, queries = text, masked
        if cut is not None:
            inputs = torch.cat((text[:, :cut], start, text[:, cut:]), 1)
            queries = torch.cat((masked[:, :cut], shown, masked[:, cut:]), 1)
        share = column_shares(model, inputs.to(run.device), queries.float().to(run.device))
        found[name] = {
            "first": estimate(share[:, :, 0]),
            "strongest": estimate(share.max(-1)),
            **({} if cut is None else {"start": estimate(share[:, :, cut])}),
        }
    return found


@torch.no_grad()
def held_loss(model: Model, run: Run, rows: str) -> float:
    """Denoising loss on 256 held-out rows under fixed masks."""
    ids = held_rows(run, 256, rows).to(run.device)
    return round(float(diffusion_loss(model, ids, 0)), 3)


@torch.no_grad()
def copy_accuracy(model: Model, run: Run, rows: str) -> float:
    """Share of masked tokens restored where a visible span of the same row holds them.

    Half of the second occurrence of a span is masked, in 128 held-out rows.
    """
    s = replace(run.settings, copied=0.0)
    ids = batch(run.tokens("held"), s, 128, (4, 5, 6), rows)
    span, half = int(run.settings.copied * s.length), s.length // 2
    ids[:, half : half + span] = ids[:, 1 : 1 + span]
    masked = torch.zeros_like(ids, dtype=torch.bool)
    chance = torch.rand(len(ids), span, generator=torch.Generator().manual_seed(0))
    masked[:, half : half + span] = chance < 0.5
    guess = model.logits(ids.masked_fill(masked, MASK).to(run.device)).argmax(-1).cpu()
    right = guess[:, :-1] == ids[:, 1:]  # the output at i − 1 predicts token i
    return round(float(right[masked[:, 1:]].float().mean()), 3)


def measure(run: Run) -> dict[str, Any]:
    """Measure every finished run in the folder; everything the page says comes from this."""
    s = run.settings
    made: dict[str, Any] = {"settings": asdict(s), "uniform": round(1 / s.length, 4)}
    made["causal"] = {
        name: {
            str(seed): measure_causal(run, seed, name)
            for seed in SEEDS
            if run.path(name, seed, "end").exists()
        }
        for name in CAUSAL.values()
    }
    for rows in ROWS:
        made[rows] = {}
        for condition in (*CONDITIONS, *(name + LONG for name in CONDITIONS)):
            last = s.saved(condition)[-1]
            seeds = [n for n in SEEDS if run.path(f"{rows}-{condition}", n, last).exists()]
            if seeds:
                found = {str(n): measure_run(run, rows, condition, n) for n in seeds}
                for seed in seeds:
                    for point in found[str(seed)]["checkpoints"]:
                        model = run.load(f"{rows}-{condition}", seed, point["step"])
                        point["copied"] = copy_accuracy(model, run, rows)
                made[rows][condition] = found
    return made


def measure_run(run: Run, rows: str, condition: str, seed: int) -> dict[str, Any]:
    """Measure all checkpoints of one training; a measured one is read from the folder."""
    began, s, words = time.monotonic(), run.settings, run.out / "tokenizer.json"
    name, checkpoints = f"{rows}-{condition}", []
    stored = run.out / "measured" / f"{name}-{seed}.json"
    if stored.exists():
        return dict(json.loads(stored.read_text()))
    for step in s.saved(condition):
        weights = run.load(name, seed, step)
        model = instrument(weights, words)
        traces = decode(model, run, rows)
        found = read_masked(model, traces)
        point = {"step": step, "loss": held_loss(weights, run, rows)}
        checkpoints.append({**point, **summarise(found)})
    final: dict[str, Any] = {"tokens": favourites(found["token"], model)}
    final |= count_moving(found, read_controls(model, traces, s.controls))
    # The same canvases for all conditions: decoded by `nothing`, of this seed or else of seed 0.
    last = s.saved("nothing")[-1]
    for other in (seed, 0):
        if run.path(f"{rows}-nothing", other, last).exists():
            reference = instrument(run.load(f"{rows}-nothing", other, last), words)
            read = read_masked(model, decode(reference, run, rows))
            final["same_canvases"] = summarise(read)
            break
    final["moved_start"] = move_start(weights, run)
    print(f"measured {name}-{seed}: {time.monotonic() - began:.0f} s", flush=True)
    stored.parent.mkdir(exist_ok=True)
    stored.write_text(json.dumps({"checkpoints": checkpoints, "final": final}))
    return {"checkpoints": checkpoints, "final": final}


# --- Figure and tables --------------------------------------------------------------------------

COLOURS = {"nothing": "#0072B2", "no-sink": "#009E73", "sink": "#D55E00"}  # Okabe and Ito's
PANELS = (
    ("first", "position 0: share of attention"),
    ("strongest", "strongest key: share of attention"),
    ("moved", "texts that move"),
)


def percent(values: Sequence[Sequence[float]]) -> str:
    """Means of all layers in percent, in the order of the layers."""
    return " · ".join(f"{100 * v[0]:.1f}" for v in values)


def bounded(value: Sequence[float]) -> str:
    mean, low, high = (100 * v for v in value)
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def peak(layers: Sequence[Sequence[float]]) -> float:
    """The mean share in the layer where it is largest."""
    return max(value[0] for value in layers)


def over_seeds(values: Sequence[float], *, share: bool) -> str:
    """Mean over seeds; with five seeds or more, Student's 95 % interval, for a share from 0 to 100."""
    mean = 100 * float(np.mean(values))
    if len(values) < ENOUGH:
        return f"{mean:.1f}"
    low, high = scipy.stats.t.interval(0.95, len(values) - 1, mean, 100 * scipy.stats.sem(values))
    if share:
        low, high = max(low, 0.0), min(high, 100.0)
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def headline_table(made: dict[str, Any]) -> str:
    """Position 0's share in the layer where it is largest: seeds side by side."""
    runs, steps = made["start"], [p["step"] for p in made["start"]["sink"]["0"]["checkpoints"]]
    found: dict[str, dict[str, float]] = {
        "causal model with start token": {
            seed: peak(one["first"]) for seed, one in made["causal"]["causal-start"].items()
        }
    }
    for condition in CONDITIONS:
        for index, step in enumerate(steps):
            found[f"`{condition}`, step {step:,}"] = {
                seed: peak(one["checkpoints"][index]["first"])
                for seed, one in runs[condition].items()
            }
    for condition in (name for name in runs if name.endswith(LONG)):
        for seed, one in runs[condition].items():
            for point in one["checkpoints"][1:]:
                row = found.setdefault(f"`{condition}`, step {point['step']:,}", {})
                row[seed] = peak(point["first"])
    for step in steps:
        sink, rest = (found[f"`{name}`, step {step:,}"] for name in ("sink", "no-sink"))
        difference = {seed: sink[seed] - rest[seed] for seed in rest}
        found[f"`sink` − `no-sink`, step {step:,}"] = difference
    same = {
        c: {n: peak(one["final"]["same_canvases"]["first"]) for n, one in runs[c].items()}
        for c in CONDITIONS
    }
    found[f"the same, step {steps[-1]:,}, on canvases decoded by `nothing`"] = {
        seed: same["sink"][seed] - same["no-sink"][seed] for seed in same["no-sink"]
    }
    seeds = list(made["causal"]["causal-start"])
    lines = [
        f"| | {' | '.join(f'seed {seed}' for seed in seeds)} | mean |",
        "|---" * (len(seeds) + 2) + "|",
    ]
    for name, values in found.items():
        cells = [f"{100 * values[seed]:.1f}" if seed in values else "" for seed in seeds]
        mean = over_seeds(list(values.values()), share=not ("−" in name or "same" in name))
        lines.append(f"| {name} | {' | '.join(cells)} | {mean} |")
    return "\n".join(lines).replace("-0.", "−0.").replace("| -", "| −").replace("[-", "[−")


def causal_table(made: dict[str, Any]) -> str:
    lines = [
        "| causal model | seed | loss | position 0, by layer | strongest key, by layer | uniform |",
        "|---" * 6 + "|",
    ]
    for name, rows in (("causal-start", "with start token"), ("causal-plain", "without")):
        for seed, one in made["causal"][name].items():
            cells = (
                percent(one["first"]),
                percent(one["strongest"]),
                f"{100 * one['uniform']:.1f}",
            )
            lines.append(f"| {rows} | {seed} | {one['loss']:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary_table(made: dict[str, Any], rows: str) -> str:
    lines = [
        "| begins with | seed | loss | copied | position 0 | strongest key | it is position 0 "
        "| texts that move |",
        "|---" * 8 + "|",
    ]
    for condition, runs in made[rows].items():
        for seed, one in runs.items():
            end = one["checkpoints"][-1]
            cells = [percent(end[k]) for k in ("first", "strongest", "is_first", "moved")]
            lines.append(
                f"| `{condition}` | {seed} | {end['loss']:.2f} | {100 * end['copied']:.1f} | "
                + " | ".join(cells)
                + " |"
            )
    return "\n".join(lines)


def layer_table(made: dict[str, Any], rows: str) -> str:
    """Every layer at the last checkpoint, with intervals over texts and the controls."""
    lines = [
        "| begins with | seed | layer | position 0 | strongest key | strongest other key | texts that move "
        "| reference key | controls: mean, largest | real anchor |",
        "|---" * 10 + "|",
    ]
    for condition, runs in made[rows].items():
        for seed, one in runs.items():
            end, final = one["checkpoints"][-1], one["final"]
            for layer, real in enumerate(final["real"]):
                cells = [bounded(end[k][layer]) for k in ("first", "strongest", "other", "moved")]
                mean, most = (100 * final[k][layer] for k in ("control_share", "control_most"))
                cells += [bounded(end["share"][layer]), f"{mean:.1f}, {most:.1f}"]
                cells.append("yes" if real else "no")
                lines.append(f"| `{condition}` | {seed} | {layer} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def place_table(made: dict[str, Any]) -> str:
    """Where attention goes when the start token is moved or left out."""
    lines = [
        "| begins with | seed | start token at 0 | left out: position 0 | left out: strongest key "
        "| moved: start token | moved: position 0 |",
        "|---" * 7 + "|",
    ]
    for condition, runs in made["start"].items():
        for seed, one in runs.items():
            at = one["final"]["moved_start"]
            found = (
                at["at 0"]["start"],
                at["left out"]["first"],
                at["left out"]["strongest"],
                at["later"]["start"],
                at["later"]["first"],
            )
            lines.append(f"| `{condition}` | {seed} | " + " | ".join(map(percent, found)) + " |")
    return "\n".join(lines)


def tables(made: dict[str, Any]) -> dict[str, str]:
    """All tables of the page by name; of the two kinds of rows, those that were trained."""
    trained = [rows for rows in ROWS if made[rows]]
    return {
        "headline": headline_table(made),
        "causal": causal_table(made),
        "place": place_table(made),
        **{f"{rows} summary": summary_table(made, rows) for rows in trained},
        **{f"{rows} layers": layer_table(made, rows) for rows in trained},
    }


def fill_page(page: str, made: dict[str, Any]) -> str:
    """Put the tables between their markers."""
    for name, table in tables(made).items():
        begin, end = f"<!-- table: {name} -->", "<!-- end -->"
        if begin not in page:
            raise UsageError(f"the page has no marker {begin}")
        before, after = page.split(begin, 1)
        page = f"{before}{begin}\n{table}\n{end}{after.split(end, 1)[1]}"
    return page


def draw(made: dict[str, Any], path: Path) -> None:
    """Draw the three quantities over training by layer; a line is a seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    layers = made["settings"]["layers"]
    steps = sorted({p["step"] for p in made["start"]["nothing"]["0"]["checkpoints"]})
    for runs in (made["start"].get(name + LONG, {}) for name in CONDITIONS):
        steps += [one["checkpoints"][-1]["step"] for one in runs.values()]
    steps, first = sorted(set(steps)), min(step for step in steps if step)
    style: Any = {"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "floatscope"}
    with plt.rc_context(style):
        figure, axes = plt.subplots(
            *(len(PANELS), layers),
            figsize=(1.2 + 2.3 * layers, 5),
            sharex=True,
            sharey="row",
            squeeze=False,
            layout="constrained",
        )
        for row, (name, title) in enumerate(PANELS):
            for layer in range(layers):
                axis = axes[row, layer]
                for condition, runs in made["start"].items():
                    colour = COLOURS[condition.removesuffix(LONG)]
                    line = ".--" if condition.endswith(LONG) else ".-"
                    for number, one in enumerate(runs.values()):
                        x = [point["step"] for point in one["checkpoints"]]
                        value = np.array([point[name][layer] for point in one["checkpoints"]]) * 100
                        if name != "moved":
                            axis.fill_between(
                                x, value[:, 1], value[:, 2], color=colour, alpha=0.12, lw=0
                            )
                        label = None if number else condition
                        axis.plot(x, value[:, 0], line, color=colour, lw=1, ms=3, label=label)
                axis.set_xscale("symlog", linthresh=first, linscale=0.5)
                axis.set_xticks(steps, [f"{step:,}" for step in steps])
                axis.minorticks_off()
                axis.spines[["top", "right"]].set_visible(False)
                axis.yaxis.set_major_formatter(lambda v, _: f"{v:.0f} %")
                if row == 0:
                    axis.set_title(f"layer {layer}", fontsize=8)
            axes[row, 0].set_ylim(bottom=0)  # of the whole row, once all of it is drawn
            axes[row, 0].set_ylabel(title.replace(": ", ":\n"))
        for axis in axes[-1]:
            axis.set_xlabel("denoising steps")
        axes[0, 0].legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


# --- Command line -------------------------------------------------------------------------------


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    trains = commands.add_parser("train", help="train the causal models, then the diffusion models")
    trains.add_argument("--corpus", type=Path, required=True, help="folder with the natural text")
    trains.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    trains.add_argument(
        *("--rows",),
        nargs="+",
        choices=ROWS,
        default=["start"],
        help="rows of the diffusion training: with a start token, without, or one after the other",
    )
    trains.add_argument("--shape", choices=SHAPES, default="small", help="network, data and budget")
    trains.add_argument(
        *("--conditions",),
        nargs="+",
        choices=[*CONDITIONS, *(name + LONG for name in CONDITIONS)],
        default=CONDITIONS,
        help="what the diffusion models begin with",
    )
    measures = commands.add_parser("measure", help="measure all checkpoints of a folder")
    for command in (trains, measures):
        command.add_argument("--out", type=Path, required=True, help="the run's folder")
        command.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        command.add_argument("--threads", type=int, default=1, help="of PyTorch on the CPU")
    draws = commands.add_parser("draw", help="write the figure and fill in the page's tables")
    draws.add_argument("--page", type=Path, required=True, help="the figure is written beside it")
    for command in (measures, draws):
        command.add_argument("--results", type=Path, required=True, help="the measured JSON")
    return parser.parse_args(argv)


def train_all(args: argparse.Namespace) -> None:
    settings, stored = SHAPES[args.shape], args.out / "settings.json"
    args.out.mkdir(parents=True, exist_ok=True)
    if stored.exists() and Run(args.out).settings != settings:
        raise UsageError(f"{args.out} holds a run with other settings: give another --out")
    stored.write_text(json.dumps(asdict(settings), indent=1) + "\n")
    if not (args.out / "held.npy").exists():
        prepare(args.corpus, args.out, settings)
    run = Run(args.out, settings, args.device)
    for rows in args.rows:
        for seed in args.seeds:
            for name in CAUSAL.values():
                run.train_causal(seed, name)
            for condition in args.conditions:
                run.train_diffusion(seed, condition, rows)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    if args.command == "draw":
        made = json.loads(args.results.read_text())
        args.page.write_text(fill_page(args.page.read_text("utf-8"), made), "utf-8")
        draw(made, args.page.with_suffix(".svg"))
        return
    torch.set_num_threads(args.threads)
    if args.device == "cuda":
        torch.set_float32_matmul_precision("high")
    if args.command == "train":
        train_all(args)
    else:
        made = measure(Run(args.out, device=args.device))
        args.results.write_text(json.dumps(made, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

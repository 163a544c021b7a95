"""Causal tools on a GPU: each bites, is undone, and is what a CPU computes in float64; and what they cost.

    python bench/gpu_parts/causal.py [--device cuda] [--json FILE] [--quick]

Needs torch, transformers, numpy and jaxtyping alone (and Triton on a GPU). Small random models of every
family, in float32 and bfloat16; prompts of two lengths in one batch; causal models with their KV cache. A
decoding on the device is compared, by step, layer and row, with the same decoding of the same weights on the
CPU in float64, as far as both have decided alike. The largest error may be three times that of a decoding
without intervention, and a third of what the intervention changes. Ends with 1 if anything fails.
"""

import argparse
import copy
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src")]

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from floatscope.attention import Capture, Forward, Labels, reference, selfcheck  # noqa: E402
from floatscope.decode.loop import decode  # noqa: E402
from floatscope.decode.samplers.autoregressive import Autoregressive  # noqa: E402
from floatscope.decode.samplers.confidence import Confidence  # noqa: E402
from floatscope.decode.state import State, notify_edits  # noqa: E402
from floatscope.errors import UsageError  # noqa: E402
from floatscope.interventions.base import Combined, Intervention  # noqa: E402
from floatscope.interventions.branching import ablated_each  # noqa: E402
from floatscope.interventions.head_outputs import HeadMeans, HeadRows  # noqa: E402
from floatscope.interventions.library.ablate_heads import AblateHeads  # noqa: E402
from floatscope.interventions.library.cut_edges import CutEdges  # noqa: E402
from floatscope.interventions.library.force_token import ForceToken  # noqa: E402
from floatscope.interventions.library.mask_tokens import MaskTokens  # noqa: E402
from floatscope.interventions.library.mask_values import MaskValues  # noqa: E402
from floatscope.interventions.library.patch import Patch  # noqa: E402
from floatscope.interventions.library.remasked import Remasked  # noqa: E402
from floatscope.interventions.patch_source import PatchSource  # noqa: E402
from floatscope.models import FAMILIES, Direction, Model, attention_hook, tiny  # noqa: E402
from floatscope.models.loading import load  # noqa: E402
from floatscope.models.registry import family_by_name  # noqa: E402
from floatscope.sequences.prompt import Encoded  # noqa: E402

ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 0.1}  # at most, of the worst row, by its size
HEADS = ((0, 1), (1, 3), (1, 0), (2, -1))
failures: list[str] = []


def check(right: bool, what: str) -> None:
    if not right:
        failures.append(what)
        print("FAILED", what, flush=True)


# Models and prompts


def prompt_of(seed: int, sizes: Sequence[int]) -> Encoded:
    """Random tokens: an opening, two passages of which the second is gold, a question."""
    names = ("template", "passage 1", "passage 2", "question")
    ids = torch.randint(0, 250, (sum(sizes),), generator=torch.Generator().manual_seed(seed))
    regions = [name for name, size in zip(names, sizes, strict=True) for _ in range(size)]
    return Encoded(tuple(ids.tolist()), tuple(regions), gold="passage 2")


CLEAN, OTHER = prompt_of(1, (3, 40, 30, 20)), prompt_of(2, (3, 40, 30, 20))
SHORT = prompt_of(3, (3, 20, 10, 8))


def models_of(
    family: str, folder: Path, dtype: torch.dtype, device: torch.device
) -> tuple[Model, Model]:
    """On the device, and the same weights on the CPU in float64."""
    shape = tiny.Shape(layers=4, width=256, heads=8, kv_heads=2, ffn=512, spread=0.09)
    path = tiny.write(family, folder / f"{family} {dtype}", shape)
    ours = load(path, into=Model, dtype=dtype, device=device)
    selfcheck.check(ours)
    exact = load(path, into=Model, dtype=torch.float64, device="cpu")
    for one, other in zip(exact.net.parameters(), ours.net.parameters(), strict=True):
        one.data = other.data.double().cpu()  # as they were rounded
    return ours, exact


def sampler_of(model: Model) -> Any:
    if model.is_diffusion:
        return Confidence(length=4, steps=3, stop_at_eos=False)
    return Autoregressive(length=4, stop_at_eos=False)


# What a decoding computes


@contextmanager
def watched(model: Model) -> Iterator[list[list[Tensor]]]:
    """Every forward inside: the input of each layer and of the last norm."""
    forwards: list[list[Tensor]] = []

    def look(first: bool) -> Any:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            if first:
                forwards.append([])
            x = args[0] if args else kwargs["hidden_states"]
            if x.ndim == 3:  # a lens calls the last norm too, with rows alone
                forwards[-1].append(x.clone())

        return hook

    places = [*model.net.model.layers, model.net.model.norm]
    hooks = [
        place.register_forward_pre_hook(look(number == 0), with_kwargs=True)
        for number, place in enumerate(places)
    ]
    try:
        yield forwards
    finally:
        for hook in hooks:
            hook.remove()


def ran(model: Model, prompts: Sequence[Encoded], change: Intervention | None) -> tuple[Any, Any]:
    with change(model) if change is not None else nullcontext(), watched(model) as forwards:
        done = decode(model, prompts, sampler_of(model))
    return done, forwards


def real(layers: list[Tensor], prompts: Sequence[Encoded], b: int) -> list[Tensor]:
    """Rows of one prompt without its padding."""
    padding = max(len(p.ids) for p in prompts) - len(prompts[b].ids)
    whole = layers[0].shape[1] > 1
    return [x[b, padding if whole else 0 :].double().cpu() for x in layers]


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    """Of a row's, relative to the size of what is there: the largest over rows and layers."""
    gaps = ((x - y).norm(dim=-1) / y.norm(dim=-1) for x, y in zip(a, b, strict=True))
    return max(float(gap.max()) for gap in gaps)


def agreement(
    ours: Model, exact: Model, prompts: Sequence[Encoded], change: Intervention | None
) -> tuple[float, float]:
    """Error against float64, and what the intervention changes there."""
    done, forwards = ran(ours, prompts, change)
    right, wanted = ran(exact, prompts, None if change is None else doubled(change))
    usual, plain = ran(exact, prompts, None)
    error = bite = 0.0
    for b in range(len(prompts)):
        for step in range(min(done[b].steps, right[b].steps)):
            if not np.array_equal(done[b].canvas[step], right[b].canvas[step]):
                break
            mine, theirs = (real(x[step], prompts, b) for x in (forwards, wanted))
            error = max(error, distance(mine, theirs))
        before = real(plain[0], prompts, b)
        bite = max(bite, distance(real(wanted[0], prompts, b), before))
    if bite == 0:  # it acts on what a step decides: other tokens, or not
        bite = float(
            any(not np.array_equal(x.canvas, y.canvas) for x, y in zip(right, usual, strict=True))
        )
    return error, bite


def in_float64(part: Any) -> Any:
    """A reference as the CPU takes it."""
    if isinstance(part, HeadMeans):
        return replace(part, mean=part.mean.double().cpu())
    if isinstance(part, HeadRows):
        rows = {k: tuple(x.double().cpu() for x in v) for k, v in part.rows.items()}
        return replace(part, rows=rows)
    if isinstance(part, PatchSource):
        return replace(part, tensors={k: x.double().cpu() for k, x in part.tensors.items()})
    return part


def doubled(change: Intervention) -> Intervention:
    if isinstance(change, Combined):
        return Combined(tuple(doubled(part) for part in change.parts))
    names = ("reference", "source")
    return replace(
        change, **{n: in_float64(getattr(change, n)) for n in names if hasattr(change, n)}
    )


def changes_of(ours: Model, sampler: Any) -> Iterator[tuple[str, Intervention, list[Encoded]]]:
    several, means = [OTHER, SHORT], HeadMeans.of(ours, [CLEAN, SHORT], sampler)
    rows = HeadRows.of(ours, [CLEAN, prompt_of(4, (3, 9, 9, 9))])
    source = PatchSource.of(ours, CLEAN, sampler)
    yield "heads zero", AblateHeads(HEADS), several
    yield "heads mean", AblateHeads(HEADS, "mean", reference=means), several
    yield "heads resample", AblateHeads(HEADS, "resample", reference=rows), several
    yield "values zero", MaskValues(regions="gold"), several
    yield "values mean", MaskValues(regions="gold", to="mean", heads=[1, 2]), several
    yield "edges", CutEdges(queries="predicting", keys="gold", layers=[1, 2]), several
    yield "patch residual", Patch("residual", source, layers=2, regions="gold"), [OTHER]
    yield "patch head", Patch("head", source, layers=[1, 2], heads=[1, 2]), [OTHER]
    yield "patch attention", Patch("attention", source, layers=1), [OTHER]
    yield "force token", ForceToken(0, 77, 0), [OTHER]
    if ours.is_diffusion:
        yield "remasked", Remasked(range(4), 0), [OTHER]
    both = (AblateHeads(HEADS), CutEdges(queries="answer", keys="gold"), MaskValues(positions=0))
    yield "together", Combined(both), several


def bits(ours: Model, name: str) -> None:
    """What must not change by a bit: after the `with`, with nothing hidden, patched with itself."""
    sampler = sampler_of(ours)
    plain = decode(ours, [OTHER], sampler)[0]

    def same(what: str, done: Any) -> None:
        equal = np.array_equal(done.canvas, plain.canvas) and np.array_equal(
            done.confidence, plain.confidence, equal_nan=True
        )
        check(equal, f"{name}: {what} changes bits")

    for _, change, prompts in changes_of(ours, sampler):
        with change(ours):
            decode(ours, prompts, sampler)
    same("what was in force before", decode(ours, [OTHER], sampler)[0])
    check(not ours.edits and not attention_hook._handlers, f"{name}: something is still in force")
    for nothing in (MaskTokens(regions="nowhere"), CutEdges(queries="nowhere", keys="gold")):
        with nothing.in_force(ours):
            same("nothing hidden", decode(ours, [OTHER], sampler)[0])
    itself = PatchSource.of(ours, OTHER, sampler)
    for what in ("residual", "head", "attention"):
        with Patch(what, itself)(ours):
            same(f"{what} patched with itself", decode(ours, [OTHER], sampler)[0])
    every = [(layer, head) for layer in range(ours.n_layers) for head in range(ours.n_heads)]
    ids = torch.tensor([[70]], device=ours.device)
    before = ours.logits(ids)
    with AblateHeads(every, "mean", reference=HeadMeans.of(ours, [[70]]))(ours):
        check(torch.equal(before, ours.logits(ids)), f"{name}: a row's own mean changes bits")
    if not ours.is_diffusion:
        try:
            with Remasked(0, 0)(ours):
                check(False, f"{name}: a causal model was remasked")
        except UsageError:
            pass


# Looking inside


@torch.inference_mode()
def inside(ours: Model, name: str) -> float:
    """lens, massive and kv_drift of two forwards against float64 on what the device itself computed."""
    size, batch = 90, 2
    fill = 7 if ours.mask_id is None else ours.mask_id
    generator = torch.Generator().manual_seed(0)
    capture = Capture(ours, {"lens", "massive", "kv_drift"}, range(ours.n_layers), range(8))
    worst = 0.0
    before: dict[int, tuple[Tensor, Tensor]] = {}
    for step in range(2):
        ids = torch.randint(0, 250, (batch, size), generator=generator).to(ours.device)
        ids[:, -6:] = fill
        padding = torch.tensor([0, 11], device=ours.device)
        visible = ours.visibility(size, size, padding)
        none = torch.zeros_like(ids).masked_fill(~visible.key_is_real, -1)
        rows = torch.arange(size - 6, size, device=ours.device) - ours.shift
        wanted = torch.ones(batch, 6, dtype=torch.bool, device=ours.device)
        forward = Forward(
            *(visible, Labels(none, 1, none, 1), (size - 6 - ours.shift, size - ours.shift)),
            cached=False,
            prompts=(0, 1),
            predicted=(size - 6, rows, wanted),
        )
        calls: dict[int, tuple[Tensor, Tensor]] = {}

        def keep(
            call: attention_hook.Call, proceed: attention_hook.Proceed, calls: Any = calls
        ) -> Tensor:
            calls[call.layer] = call.key.double(), call.value.double()
            return proceed(call)

        with (
            attention_hook.attach(ours.net, keep),
            watched(ours) as forwards,
            capture,
            capture.forward(forward) as captured,
        ):
            ours.forward(ids, rows.clamp(min=0), visible)
        norm, head = copy.deepcopy(ours.net.model.norm), ours.net.get_output_embeddings().weight
        norm.weight.data = norm.weight.data.double()
        for layer, one in captured.layers.items():
            x, after = forwards[0][layer].double(), forwards[0][layer + 1].double()
            worst = max(
                worst, _off(one.values["massive"], reference.massive(x), visible.key_is_real)
            )
            logits = norm(after[:, rows]) @ head.double().T
            if ours.mask_id is not None:
                logits[..., ours.mask_id] = -torch.inf
            p = logits.softmax(-1)
            worst = max(worst, _off(one.values["lens_probability"], p.max(-1).values))
            worst = max(worst, _off(one.values["lens_entropy"], torch.special.entr(p).sum(-1)))
            if step:
                for drift, new, old in zip(
                    (one.values["key_drift"], one.values["value_drift"]),
                    calls[layer],
                    before[layer],
                    strict=True,
                ):
                    turned = 1 - torch.cosine_similarity(new, old, dim=-1).mean(1)
                    worst = max(worst, _off(drift, turned, visible.key_is_real))
        before = calls
    # In bfloat16 the head's own product is rounded, for the network and for the lens alike.
    check(
        worst < (1e-4 if ours.dtype == torch.float32 else 0.05),
        f"{name}: inside is off by {worst:.2g}",
    )
    return worst


def _off(found: Any, wanted: Tensor, where: Tensor | None = None) -> float:
    gap = (found.double() - wanted).abs() / (1e-2 + wanted.abs())
    return float(gap.max() if where is None else gap[where].max())


# Many at once


def read(model: Model, ids: list[int], rows: list[int], change: Intervention) -> Tensor:
    """One forward over a text with an intervention in force."""
    prompt = Encoded(tuple(ids), ("prompt",) * len(ids))
    canvas, size = torch.tensor([ids], device=model.device), len(ids)
    with change.in_force(model), torch.inference_mode():
        state = State.build(model, [prompt], canvas, (size, size), prompt_end=size)
        with notify_edits(model, state):
            return model.forward(canvas, torch.tensor(rows, device=model.device), state.visible)[0]


def many(ours: Model, name: str) -> float:
    ids, rows = list(OTHER.ids), [5, len(OTHER.ids) - 1]
    sets = [[], [(3, 1)], [(0, 0), (2, 3)], [(1, 2)], [(3, 7)]]
    found = ablated_each(ours, ids, sets, rows).double()
    worst = 0.0
    for heads, one in zip(sets[1:], found[1:], strict=True):
        wanted = read(ours, ids, rows, AblateHeads(heads)).double()
        worst = max(worst, float((one - wanted).norm() / wanted.norm()))
        check(not torch.equal(one, found[0]), f"{name}: ablated_each of {heads} changes nothing")
    check(worst < ROUNDING[ours.dtype] / 4, f"{name}: ablated_each is off by {worst:.2g}")
    return worst


def throughput(device: torch.device, quick: bool) -> dict[str, float]:
    """All heads of the twin's shape on a text of 300 tokens, together and one by one, in turn."""
    layers = 4 if quick else 30
    config = LlamaConfig(
        hidden_size=576, num_hidden_layers=layers, num_attention_heads=9, num_key_value_heads=3,
        intermediate_size=1536, vocab_size=49152, is_causal=False, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(0)
    net = LlamaForCausalLM(config).eval().to(device)
    net = net if device.type == "cpu" else net.to(torch.bfloat16)
    about = (family_by_name("LLaDA"), Direction.BIDIRECTIONAL, None, 1, 4, ())
    model = Model("twin's shape", net, None, *about)
    ids = torch.randint(5, 49000, (300,)).tolist()
    rows = [295, 296, 297, 298]
    every = [(layer, head) for layer in range(layers) for head in range(9)]

    def clock(act: Callable[[], object]) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        act()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    some = every[:: len(every) // 9 or 1]
    alone, each = [], []
    for _ in range(2 if quick else 5):
        alone.append(
            clock(lambda: [read(model, ids, rows, AblateHeads([h])) for h in some]) / len(some)
        )
        each.append(
            clock(lambda: ablated_each(model, ids, [[h] for h in every], rows)) / len(every)
        )
    one, other = statistics.median(alone[1:]), statistics.median(each[1:])
    return {
        "heads": len(every),
        "alone_ms": 1e3 * one,
        "together_ms": 1e3 * other,
        "ratio": one / other,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer layers in what is timed")
    parser.add_argument("--dtypes", nargs="+", help="float32, bfloat16; on a CPU float32 alone")
    args = parser.parse_args()
    device = torch.device(args.device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(where, "torch", torch.__version__, flush=True)
    usual = ["float32"] if device.type == "cpu" else ["float32", "bfloat16"]
    kinds = [getattr(torch, name) for name in args.dtypes or usual]
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for family in (one.name for one in FAMILIES.values()):
            for dtype in kinds:
                ours, exact = models_of(family, Path(folder), dtype, device)
                name = f"{family}, {str(dtype).removeprefix('torch.')}"
                row: dict[str, Any] = {"model": name}
                rounding = max(agreement(ours, exact, [one], None)[0] for one in (OTHER, SHORT))
                check(
                    rounding < ROUNDING[dtype], f"{name}: a plain decoding is off by {rounding:.2g}"
                )
                for what, change, prompts in changes_of(ours, sampler_of(ours)):
                    error, bite = agreement(ours, exact, prompts, change)
                    row[what] = {"error": error, "bite": bite}
                    fits = error < 3 * rounding and error < bite / 3
                    check(fits, f"{name}, {what}: error {error:.2g}, bite {bite:.2g}")
                bits(ours, name)
                row["inside"], row["many"] = inside(ours, name), many(ours, name)
                results.append(row)
                errors = [cell["error"] for cell in row.values() if isinstance(cell, dict)]
                least = min(cell["bite"] for cell in row.values() if isinstance(cell, dict))
                print(
                    f"{name:18} {len(errors)} interventions: error ≤ {max(errors):.1e} "
                    f"(without: {rounding:.1e}), bite ≥ {least:.1e}; "
                    f"inside {row['inside']:.1e}, ablated_each {row['many']:.1e}",
                    flush=True,
                )
    found: dict[str, Any] = {"device": where, "torch": torch.__version__, "models": results}
    found["throughput"] = throughput(device, args.quick)
    print("all heads of the twin's shape:", json.dumps(found["throughput"]))
    if args.json:
        args.json.write_text(json.dumps(found | {"failures": failures}, indent=1) + "\n")
    print(f"{len(failures)} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()

"""What a study costs in GPU time and bytes: forwards counted from its plan, times the seconds measured.

Nothing is timed here. The plan that `floatscope study` would run is made, and every decoding in it is
counted by what it does: `traced` (all statistics captured), `plain`, `anchors` (column sums computed
in every layer to find the anchors, then columns hidden) and `tokens` (columns hidden in a third of
the layers). Seconds are those of one example's decoding of the usual number of steps.

    python bench/cost.py --plain 1.1 --traced 1.4 --anchors 2.0 --tokens 1.2 [--causal-plain 0.4 ...]
"""

import argparse
import heapq
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from floatscope.engine import Shard
from floatscope.studies import STUDIES, Request, request_of
from floatscope.studies.planning import measures_of, plan, settings_of
from floatscope.studies.study import Setting

WAYS = ("plain", "traced", "anchors", "tokens")
# Samplers that choose their own number of steps: at most one a token, and fewer when they are sure.
ADAPTIVE = ("threshold", "factor", "entropy-bound")


@dataclass(frozen=True)
class Kind:
    """A model: does it fill masks, and what a question stores (bytes, from bench/shard_bytes.py)."""

    name: str
    diffusion: bool
    measured: float = 105_000.0  # a traced example, in the file
    kept: float = 410e6  # a trace kept for the viewer
    answer: float = 250.0


@dataclass(frozen=True)
class Cost:
    """Of one model: decodings and forwards by way, stored bytes, shards."""

    decodings: Counter[str]
    forwards: Counter[str]
    stored: float
    shards: int

    def gpu_seconds(self, seconds: dict[str, float], steps: int) -> float:
        """`seconds` of a decoding of `steps` forwards, by way."""
        return sum(n / steps * seconds[way] for way, n in self.forwards.items())


def way_of(setting: Setting) -> str:
    if setting.intervention.startswith("mask-columns"):
        return "anchors"
    return "tokens" if setting.intervention else "plain"


def steps_of(setting: Setting, request: Request) -> int:
    """Forwards of one decoding, at most: the end of an answer can end it earlier."""
    usual = request.steps or request.length
    if setting.sampler in ADAPTIVE:
        return request.length
    return 2 * usual if setting.sampler == "remask" else usual


def count(request: Request, kind: Kind, number: int = 0) -> Cost:
    """Of the model with this number in the request; a causal one is not asked by other samplers."""
    decodings: Counter[str] = Counter()
    forwards: Counter[str] = Counter()
    settings, stored, shards = settings_of(request), 0.0, 0
    again = sum(name.endswith("-finished") for name in measures_of(request))
    usual = request.steps or request.length if kind.diffusion else request.length
    for shard in plan(request).shards:
        spec = shard.spec
        if spec["model"] != request.models[number]:
            continue
        shards += 1
        examples = spec["stop"] - spec["start"]
        if spec["kind"] == "trace":
            decodings["traced"] += examples
            forwards["traced"] += examples * (usual + again)
            stored += examples * kind.measured
            if spec["domain"] == "questions":
                stored += kind.kept * max(0, min(spec["stop"], request.view) - spec["start"])
            continue
        setting = settings[spec["setting"]]
        if setting.sampler and not kind.diffusion:
            continue
        steps = steps_of(setting, request) if kind.diffusion else request.length
        decodings[way_of(setting)] += examples
        forwards[way_of(setting)] += examples * steps
        stored += examples * kind.answer
    return Cost(decodings, forwards, stored, shards)


ASSUMED = {"plain": 1.0, "traced": 1.3, "anchors": 1.5, "tokens": 1.1}  # until measured


def planned(request: Request, seconds: dict[str, dict[str, float]]) -> list[tuple[Shard, float]]:
    """Every shard of the plan, and the GPU's time for it; the first model fills masks."""
    settings, found = settings_of(request), []
    for shard in plan(request).shards:
        spec = shard.spec
        diffusion = spec["model"] == request.models[0]
        each = seconds["diffusion" if diffusion else "causal"]
        examples = spec["stop"] - spec["start"]
        if spec["kind"] == "trace":
            found.append((shard, examples * each["traced"]))
            continue
        setting = settings[spec["setting"]]
        usual = request.steps or request.length
        share = steps_of(setting, request) / usual if diffusion else float(not setting.sampler)
        found.append((shard, examples * share * each[way_of(setting)]))
    return found


def wall(
    shards: list[tuple[Shard, float]], gpus: int, load: float, idle: float
) -> tuple[float, float]:
    """Seconds until the last shard ends, and the share of them in which a GPU works.

    Workers take shards in the plan's order, load a model when the shard's is another one, and lose
    `idle` between two shards: a queue, as the engine has it.
    """
    free = [(0.0, number, "") for number in range(gpus)]
    for shard, gpu in shards:
        at, number, model = heapq.heappop(free)
        loads = 0.0 if model == shard.spec["model"] else load
        heapq.heappush(free, (at + loads + gpu + idle, number, str(shard.spec["model"])))
    end = max(free)[0]
    return end, sum(gpu for _, gpu in shards) / (gpus * end)


def example(questions: int, limit: int, **fields: Any) -> Request:
    """All nine studies of LLaDA-8B and Llama-8B on a file of questions with five passages."""
    chosen = {
        "studies": tuple(STUDIES),
        "models": ("LLaDA-8B-Instruct", "Llama-3.1-8B-Instruct"),
        "data": "nq.jsonl.gz",
        "asked_as": "passages=5",
        "traced_as": "passages=5",
        "questions": questions,
        "limit": limit,
        "length": 32,
    }
    return request_of({**chosen, **fields})


def report(
    request: Request,
    seconds: dict[str, dict[str, float]],
    gpus: list[int],
    load: float,
    idle: float,
    told: float,
) -> dict[str, Any]:
    """GPU-hours and bytes of every model, and hours by GPUs; `seconds` by direction and way.

    `told` is the time of tables and page, when no GPU is needed and, in one run, none is used.
    """
    found: dict[str, Any] = {}
    for number, name in enumerate(request.models):
        kind = Kind(name, diffusion=number == 0)
        cost = count(request, kind, number)
        usual = request.steps or request.length if kind.diffusion else request.length
        each = seconds["diffusion" if kind.diffusion else "causal"]
        hours = cost.gpu_seconds(each, usual) / 3600
        by_way = {w: n / usual * each[w] / 3600 for w, n in cost.forwards.items()}
        found[name] = {
            "decodings": dict(cost.decodings),
            "decodings_a_question": sum(cost.decodings.values()) / request.questions,
            "forwards": dict(cost.forwards),
            "shards": cost.shards,
            "gpu_hours": hours,
            "gpu_hours_by_way": by_way,
            "bytes": cost.stored,
        }
    total = sum(one["gpu_hours"] for one in found.values())
    shards = planned(request, seconds)
    found["total"] = {"gpu_hours": total, "shards": len(shards)}
    found["by_gpus"] = [
        {
            "gpus": n,
            "hours": round(end / 3600, 3),
            "efficiency": round(used, 3),
            "hours_with_report": round((end + told) / 3600, 3),
            "efficiency_with_report": round(used * end / (end + told), 3),
        }
        for n in gpus
        for end, used in [wall(shards, n, load, idle)]
    ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--limit", type=int, default=1000, help="Examples traced.")
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--view", type=int, default=6)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--load", type=float, default=60.0, help="Seconds to load a model.")
    parser.add_argument("--idle", type=float, default=0.1, help="Lost between two shards.")
    for way in WAYS:
        told = f"Seconds of a {way} decoding of one example (1: counts alone)."
        parser.add_argument(f"--{way}", type=float, default=1.0, help=told)
        told = "The same of the causal model; like the other's if left out."
        parser.add_argument(f"--causal-{way}", type=float, help=told)
    parser.add_argument(
        "--report", type=float, default=0.34, help="Seconds a question, at the end."
    )
    args = parser.parse_args()
    fields = {name: getattr(args, name) for name in ("length", "steps", "view")}
    request = example(args.questions, args.limit, **fields)
    diffusion = {way: getattr(args, way) for way in WAYS}
    causal = {way: getattr(args, f"causal_{way}") or diffusion[way] for way in WAYS}
    seconds = {"diffusion": diffusion, "causal": causal}
    told = args.report * args.questions
    print(json.dumps(report(request, seconds, args.gpus, args.load, args.idle, told), indent=1))


if __name__ == "__main__":
    main()

"""What a study costs in GPU time and bytes: forwards counted from its plan, times the seconds measured.

Nothing is timed here. The plan that `floatscope study` would run is made, and every decoding in it is
counted by what it does: `traced` (all statistics captured), `plain` and `anchors` (column sums computed
in every layer to find the anchors, then their attention lowered). Seconds are those of one example's
decoding of the usual number of steps.

    python bench/cost.py --plain 1.1 --traced 1.4 --anchors 2.0 [--causal-plain 0.4 ...]
"""

import argparse
import heapq
import json
from typing import Any

from scale_parts.counting import WAYS, Kind, count, example, planned

from floatscope.engine import Shard
from floatscope.studies import Request


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

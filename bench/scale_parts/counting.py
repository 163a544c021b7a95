"""A study's plan, counted: every decoding by its way, its forwards, its bytes, its shards' GPU time."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from floatscope.engine import Shard
from floatscope.studies import Request, request_of
from floatscope.studies.planning import measures_of, plan, settings_of
from floatscope.studies.study import Setting, by_default

WAYS = ("plain", "traced", "anchors")
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
    return "anchors" if setting.intervention else "plain"


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
            if spec["domain"] == "questions" and "control" not in spec:
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


ASSUMED = {"plain": 1.0, "traced": 1.3, "anchors": 1.5}  # until measured


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


def example(questions: int, limit: int, **fields: Any) -> Request:
    """All nine studies of LLaDA-8B and Llama-8B on a file of questions with five passages."""
    chosen = {
        "studies": by_default(),
        "models": ("LLaDA-8B-Instruct", "Llama-3.1-8B-Instruct"),
        "data": "nq.jsonl.gz",
        "asked_as": "passages=5",
        "traced_as": "passages=5",
        "questions": questions,
        "limit": limit,
        "length": 32,
    }
    return request_of({**chosen, **fields})

"""The manifest: the contents of a finished run, and a summary of its log.

`result` depends only on the plan, not on engine, workers, order or interruptions. `history` summarises
the log: what was redone and why, the number of starts, the end time.
"""

from typing import Any

from .directory import Run
from .plan import SCHEMA, Plan


def result(plan: Plan, sidecars: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the part that is the same for every run of the plan."""
    shards = [
        {"shard": shard.id, **{name: sidecars[shard.id][name] for name in ("sha256", "bytes")}}
        for shard in plan.shards
    ]
    return {
        "fingerprint": plan.fingerprint,
        "shards": shards,
        "bytes": sum(shard["bytes"] for shard in shards),
        "left_out": left_out(plan, sidecars),
    }


def left_out(plan: Plan, sidecars: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records that planning left out, then those of each shard, in the plan's order."""
    missing: list[dict[str, Any]] = [
        {"shard": None, "what": omission} for omission in plan.left_out
    ]
    for shard in plan.shards:
        missing += [
            {"shard": shard.id, "what": omission} for omission in sidecars[shard.id]["left_out"]
        ]
    return missing


def history(run: Run) -> dict[str, Any]:
    """Return the summary of the log."""
    starts, last, redone, lost = 0, "", [], []
    for event in run.events():
        last = event.get("time", last)
        if event.get("event") == "started":
            starts += 1
        elif event.get("event") == "redo":
            redone.append({"shard": event.get("shard"), "why": event.get("why")})
        elif event.get("event") == "lost":
            lost.append({"shard": event.get("shard"), "why": event.get("why")})
    return {"starts": starts, "redone": redone, "lost": lost, "ended": last}


def compose(run: Run, plan: Plan, sidecars: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the complete manifest."""
    return {"schema": SCHEMA, "result": result(plan, sidecars), "history": history(run)}

"""Compose the manifest: the contents of a finished run, and a summary of its log.

`result` depends only on the plan, and not on the engine, the workers, the order of shards or interruptions.
`history` summarises the log: the number of starts, the shards that were redone or lost, with reasons, and the
end time.
"""

from typing import Any

from .directory import Run
from .plan import SCHEMA, Plan


def result(plan: Plan, sidecars: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the part of the manifest that is the same for every run of the plan.

    `sidecars` maps shard ids to the contents of their sidecars.
    """
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
    """Return the records left out by planning, then by each shard in the plan's order, with shard id."""
    missing: list[dict[str, Any]] = [
        {"shard": None, "what": omission} for omission in plan.left_out
    ]
    for shard in plan.shards:
        missing += [
            {"shard": shard.id, "what": omission} for omission in sidecars[shard.id]["left_out"]
        ]
    return missing


def history(run: Run) -> dict[str, Any]:
    """Return a summary of a run's log: starts, redone and lost shards with reasons, and end time."""
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
    """Return the complete manifest of a finished run."""
    return {"schema": SCHEMA, "result": result(plan, sidecars), "history": history(run)}

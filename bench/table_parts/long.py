"""Long decodings in memory and on disk, and examples traced together."""

from typing import Any

from .markdown import between, megabytes, raw, table

STAGES = {
    "notebook": {"trace": "trace", "save": "save", "show in a cell": "show in a cell"},
    "served": {
        "index": "index",
        "scene": "scene",
        "heads of 16 steps": "all heads at 16 of the steps",
        "one head, all steps": "one head at all steps",
    },
}


def decoding() -> str:
    """Peak memory and time of a notebook and of the served view, before and now."""
    runs = [raw("long_decoding")[name] for name in ("before", "after")]
    rows = []
    for process, stages in STAGES.items():
        for n, (stage, name) in enumerate(stages.items()):
            found = [run[process]["stages"].get(stage) for run in runs]
            sizes = [run["notebook"]["trace_bytes"] for run in runs]
            peaks = [_peak(row, size) for row, size in zip(found, sizes, strict=True)]
            seconds = ["–" if row is None else f"{row['cpu_s']:.1f} s" for row in found]
            rows.append(["" if n else process, name, *peaks, *seconds])
    head = ["process", "stage", "peak before", "peak now", "CPU before", "CPU now"]
    return table(head, rows, left=2)


def _peak(row: dict[str, Any] | None, size: int) -> str:
    return "–" if row is None else f"{megabytes(row['peak'])}, {row['peak'] / size:.2f}×"


def streamed() -> str:
    """Traces written while they are recorded."""
    rows = []
    for row in raw("streaming"):
        done = row["steps_written"] == row["steps"]
        of_all = row["bytes_of_all"]
        size = f"{of_all / 1e9:.1f} GB" if of_all > 1e9 else megabytes(of_all)
        rows.append(
            [
                f"{row['shape']}, {row['device']}",
                f"{row['keep']}, {row['dtype']}",
                f"{row['steps_written']:,} of {row['steps']:,}",
                f"{row['bytes_a_step'] / 1e6:.2f} MB",
                size if done else f"{size}, worked out",
                megabytes(row["peak_bytes"]),
                f"{row['seconds'] / row['steps_written']:.3f} s",
                f"{row['cpu_s'] / row['steps_written']:.3f} s",
            ]
        )
    head = ["model", "kept", "steps written", "a step on disk", "all steps", "peak memory"]
    return table([*head, "a step", "CPU of a step"], rows, left=2)


def together() -> str:
    """Examples of a study, one at a time and as many as fit."""
    rows = []
    for row in raw("batching"):
        if "times_as_fast" not in row:
            continue
        alone, both = (sorted(row[name])[len(row[name]) // 2] for name in ("one_s", "together_s"))
        shortest, longest = row["prompt"]
        rows.append(
            [
                f"{row['part']}, {row['dtype']}",
                f"{shortest}–{longest} + {row['tokens']}",
                f"{alone:.3f} s",
                f"{both:.3f} s",
                between(row["times_as_fast"], row["range"], digits=2),
                ", ".join(map(str, row["batches"])),
                f"{row['same_tokens']:.0%}",
                f"{row['largest_difference']:.0e}",
            ]
        )
    head = ["shape", "tokens", "one at a time, an example", "together", "times as fast", "batches"]
    return table([*head, "same tokens", "largest difference"], rows, left=1)

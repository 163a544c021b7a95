"""Write the tables of BENCHMARKS.md and docs/how-to/clusters.md from the raw results; no figure is typed.

    python bench/tables.py            # rewrites them in place
    python bench/tables.py --check    # says whether they are up to date

A table stands between `<!-- name -->` and `<!-- end -->`.
"""

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from table_parts import long as long_parts
from table_parts import peers, scale
from table_parts.markdown import between, raw, table, times

HERE = Path(__file__).parent
PAGE = HERE.parent / "BENCHMARKS.md"
CLUSTERS = HERE.parent / "docs" / "how-to" / "clusters.md"


def gpu() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "gpu.json").read_text())
    return found


def ratio(row: dict[str, Any], way: str) -> str:
    """A way over plain; with its rounds, where the run kept them."""
    edges = row.get(f"{way}_range")
    return times(row[way]) if edges is None else between(row[way], edges)


def forwards() -> str:
    head = ["shape", "batch × S", "plain", "mass", "with groups", "all statistics"]
    head += ["memory of all", "eager, attentions kept", "its memory"]
    rows = []
    for name in ("LLaDA-8B", "Dream-7B", "Llama-8B"):
        for row in gpu()[name]:
            eager = "–" if row["eager_GiB"] is None else f"{row['eager_GiB']:.1f} GiB"
            rows.append(
                [name, f"{row['batch']} × {row['S']:,}", f"{row['plain_ms']:.1f} ms"]
                + [ratio(row, way) for way in ("mass", "groups", "all")]
                + [f"+{100 * (row['all_memory'] - 1):.1f} %", times(row["eager"]), eager]
            )
    return table(head, rows)


def long() -> str:
    return table(
        ["S", "plain", "mass", "peak memory", "eager would keep"],
        [
            [
                f"{row['S']:,}",
                f"{row['plain_ms']:.0f} ms",
                times(row["mass"]),
                f"{row['peak_GiB']:.1f} GiB",
                f"{row['eager_would_take_GiB']:,.0f} GiB",
            ]
            for row in gpu()["long"]
        ],
    )


def kernel() -> str:
    return table(
        ["S", "Floatscope", "flash-colreduce", "times as fast", "Floatscope's rate", "blocked"],
        [
            [
                f"{row['S']:,}",
                f"{row['ours_ms']:.3f} ms",
                f"{row['flash-colreduce_ms']:.3f} ms",
                f"{row['times_as_fast']:.2f}×",
                f"{row['tflops']:.0f} TFLOP/s",
                f"{row['blocked_ms']:.2f} ms",
            ]
            for row in gpu()["kernel"]
        ],
    )


def exact() -> str:
    names = ("column_sum", "entropy", "region_sum", "rolled")
    rows = []
    for dtype in ("bfloat16", "float16", "float32"):
        cases = [row for row in gpu()["exact"] if row["dtype"] == dtype]
        worst = [f"{max(row[name] for row in cases):.1e}" for name in names]
        rows.append([f"{dtype}, {len(cases)} cases", *worst])
    return table(["q and k", "column sums", "entropy", "region sums", "rollout"], rows)


def decodings() -> str:
    rows = []
    for part, what in (
        ("decode", "LLaDA-8B, 32 steps"),
        ("continue", "Llama-8B, 32 tokens, cached"),
    ):
        found = gpu()[part]
        for row in found:
            kept = f"{row['kept_GiB']:.1f} GiB" if "kept_GiB" in row else "–"
            rows.append(
                [
                    what,
                    row["way"],
                    f"{row['s']:.2f} s",
                    times(row["ratio"]),
                    f"{row['peak_GiB']:.2f} GiB",
                    kept,
                ]
            )
    return table(["decoding", "way", "time", "over plain", "peak memory", "kept"], rows)


def live() -> str:
    found = json.loads((HERE / "live.json").read_text())
    rows = [
        [
            f"{row['model']}, {row['what']}",
            f"{row['positions']} × {row['steps']}",
            *(f"{row[name]:.0f} ms" for name in ("started", "first", "gap", "longest")),
            f"{row['late']} of {row['gaps']}",
            f"{row['done']:.0f} ms",
        ]
        for row in found["rows"]
    ]
    head = ["run", "positions × steps", "begun", "first step", "between steps, median"]
    load, cores = found["load"][0], found["cores"]
    beside = (
        f"Load of the machine during that: {load:.1f}, on {cores} cores (idle otherwise: about 2)."
    )
    return table([*head, "longest", "over 150 ms", "end, saved"], rows) + f"\n\n{beside}"


def before() -> str:
    runs = [{row["way"]: row["ratio"] for row in run} for run in gpu()["decode_before"]]
    rows = [[way, *[times(run[way]) for run in runs]] for way in ("mass", "all")]
    return table(["way", *[f"run {n + 1}" for n in range(len(runs))]], rows)


def layers() -> str:
    rows = [
        [f"{row['layers']} of 32", ratio(row, "mass"), ratio(row, "all but rollout")]
        for row in gpu()["growth"]
    ]
    return table(["layers traced", "mass", "all but rollout"], rows)


def profile() -> str:
    """The kernels that a traced forward adds, and what all others take."""
    own = (
        *("column_sums", "row_sums", "value_norms", "row_powers", "query_totals", "key_columns"),
        *("row_norms", "offsets"),
    )
    rows = []
    for name in ("GEMM (nvjet)", "attention (cuDNN)", *own, "everything else"):
        cells = []
        for way in gpu()["profile"]:
            taken = {key: ms for key, _, ms in way["top"]}
            of_gemm = sum(ms for key, ms in taken.items() if key.startswith("nvjet"))
            of_attention = sum(ms for key, ms in taken.items() if key.startswith("cudnn"))
            known = {"GEMM (nvjet)": of_gemm, "attention (cuDNN)": of_attention}
            known |= {key: taken.get(key, 0.0) for key in own}
            known["everything else"] = way["kernels_ms"] - sum(known.values())
            cells.append(f"{known[name]:.2f}" if known[name] else "–")
        rows.append([name, *cells])
    rows.append(["sum", *[f"{way['kernels_ms']:.1f}" for way in gpu()["profile"]]])
    return table(["kernel, ms a forward", "plain", "mass", "all"], rows)


def seconds() -> dict[str, dict[str, float]]:
    """Of one example's decoding of 32 forwards, by way; what is assumed is said in the text."""
    first = gpu()["LLaDA-8B"]
    batch = next(row for row in first if row["batch"] == 8)
    alone = next(row for row in first if row["batch"] == 1 and row["S"] == batch["S"])
    plain = 32 * batch["plain_ms"] / 8 / 1000
    blocked = next(row["blocked_ms"] for row in gpu()["kernel"] if row["S"] == batch["S"])
    cached = {row["way"]: row["s"] for row in gpu()["continue"]}
    causal = (cached["plain"] + cached["plain again"]) / 2 / 8
    return {
        "diffusion": {
            "plain": plain,
            "traced": 32 * alone["plain_ms"] * alone["all"] / 1000,
            "anchors": plain + 32 * 32 * blocked / 1000,
        },
        "causal": {
            "plain": causal,
            "traced": cached["all"],
            "anchors": causal * cached["mass"] / cached["plain"],
        },
    }


def together() -> float:
    """Seconds of a traced decoding, eight at a time."""
    row = next(row for row in gpu()["LLaDA-8B"] if row["batch"] == 8)
    return float(32 * row["plain_ms"] * row["all"] / 8 / 1000)


def cost() -> str:
    from cost import example, report

    found = report(example(1000, 1000), seconds(), [1, 8, 64], 60.0, 0.1, 340.0)
    ways = ("plain", "anchors", "traced")
    rows = []
    for name, kind in zip(list(found)[:2], ("diffusion", "causal"), strict=True):
        one, each = found[name], seconds()[kind]
        for way in ways:
            hours, n = one["gpu_hours_by_way"][way], one["decodings"][way]
            rows.append([name, way, f"{n:,}", f"{each[way]:.2f} s", f"{hours:.2f}"])
            if way == "traced" and kind == "diffusion":  # instead of that, not besides
                less = together()
                saved = f"{hours * less / each[way]:.2f} instead"
                rows.append([name, "`--set batch=8`", f"{n:,}", f"{less:.2f} s", saved])
        rows.append([f"**{name}**", "all", f"{sum(one['decodings'].values()):,}", "–"])
        rows[-1].append(f"**{one['gpu_hours']:.1f}**")
    head = ["model", "decodings", "number", "one, 32 forwards", "GPU-hours"]
    hours = [
        [
            str(row["gpus"]),
            f"{row['hours']:.2f}",
            f"{100 * row['efficiency']:.0f} %",
            f"{row['hours_with_report']:.2f}",
        ]
        for row in found["by_gpus"]
    ]
    second = table(["GPUs", "hours", "GPUs at work", "hours with the report"], hours)
    return table(head, rows) + "\n\n" + second


def gpu_hours() -> str:
    """Of some studies, for two numbers of questions; hours on 8 and 64 GPUs are the queue, played."""
    from cost import example, report

    from floatscope.studies import STUDIES
    from floatscope.studies.study import by_default

    every = by_default(STUDIES.builtin)
    chosen = [("floating",), ("knowledge",), ("decoding",), ("robustness",), every]
    rows = []
    for studies in chosen:
        for n in (100, 1000):
            request = example(n, n, studies=studies)
            found = report(request, seconds(), [1, 8, 64], 60.0, 0.1, 0.34 * n)
            mdm, arm = (found[name]["gpu_hours"] for name in request.models)
            name = f"`{studies[0]}`" if len(studies) == 1 else f"all {len(studies)}"
            hours = [f"{row['hours_with_report']:.2f}" for row in found["by_gpus"]]
            rows.append(
                [name, f"{n:,}", f"{mdm:.2f}", f"{arm:.2f}", f"**{mdm + arm:.2f}**", *hours]
            )
    head = ["studies", "questions", "LLaDA-8B", "Llama-8B", "GPU-hours"]
    return table(head + [f"hours, {n} GPU{'s' * (n > 1)}" for n in (1, 8, 64)], rows)


def ablation() -> str:
    """Every head of a model in turn, by threads; the arithmetic as times as little as one by one."""
    found: dict[str, Any] = json.loads((HERE / "ablation.json").read_text())
    rows = []
    for row in found.values():
        alone, each = row["ways"]["one by one"], row["ways"]["together"]
        needs = row["arithmetic"]
        rows.append(
            [f"{row['model']}, {row['heads']} heads, {row['tokens']} tokens", str(row["threads"])]
            + [f"{way['cpu_ms']:.0f} ms" for way in (alone, each)]
            + [f"{row['ratio']['cpu_ms']:.2f}×"]
            + [f"{1 / needs[way]:.2f}×" for way in ("together", "least")]
        )
    head = ["model", "threads", "one by one, CPU a head", "together", "times as fast"]
    return table([*head, "by its arithmetic", "by the least arithmetic"], rows)


def causal() -> str:
    """Causal tools on a GPU: the largest error against float64, the smallest change they make."""
    found: dict[str, Any] = json.loads((HERE / "gpu_causal.json").read_text())
    rows = []
    for row in found["models"]:
        tools = [one for one in row.values() if isinstance(one, dict)]
        error, bite = max(one["error"] for one in tools), min(one["bite"] for one in tools)
        numbers = [f"{x:.1e}" for x in (error, bite, row["inside"], row["many"])]
        rows.append([row["model"], str(len(tools)), *numbers])
    head = ["model", "tools", "largest error", "smallest change", "statistics", "`ablated_each`"]
    return table(head, rows)


def causal_speed() -> str:
    """Every head of the twin's shape on a GPU, one by one and together."""
    found: dict[str, Any] = json.loads((HERE / "gpu_causal.json").read_text())
    row = found["throughput"]
    times = [f"{row['alone_ms']:.1f} ms", f"{row['together_ms']:.2f} ms", f"{row['ratio']:.0f}×"]
    head = ["heads", "one by one, a head", "together", "times as fast"]
    return table(head, [[str(row["heads"]), *times]])


def replayed() -> str:
    """Decodings of one prompt, by length; a step in ms, and the whole over two ways without tracing."""
    head = [
        "S",
        "stock untraced",
        "replayed untraced",
        "mass",
        "all",
        "launched: mass",
        "all",
        "eager",
    ]
    head += ["mass over replayed", "all over replayed"]
    rows = []
    ways = ("replayed", "mass", "all", "mass launched", "all launched", "eager")
    for row in raw("replays")["replay"]:
        cells = [f"{row['S']:,}", f"{row['stock_s'] / row['steps'] * 1e3:.1f} ms a step"]
        cells += [between(row[f"{way}_over_stock"], row[f"{way}_over_stock_range"]) for way in ways]
        for way in ("mass", "all"):
            cells.append(between(row[f"{way}_over_replayed"], row[f"{way}_over_replayed_range"]))
        rows.append(cells)
    return table(head, rows)


_AGAIN = [
    "stock untraced",
    "replayed untraced",
    "mass",
    "all",
    "mass over replayed",
    "all over replayed",
]


def _again(row: Any) -> list[str]:
    cells = [f"{row['stock_s'] / row['steps'] * 1e3:.1f} ms a step"]
    pairs = [(way, "stock") for way in ("replayed", "mass", "all")]
    pairs += [(way, "replayed") for way in ("mass", "all")]
    names = [f"{way}_over_{base}" for way, base in pairs]
    return cells + [between(row[name], row[f"{name}_range"]) for name in names]


def replayed_again() -> str:
    """The ways that a user has, of the present code."""
    rows = [[f"{row['S']:,}", *_again(row)] for row in raw("replays_again")["replay"]]
    return table(["S", *_AGAIN], rows)


def cached_again() -> str:
    rows = [[str(row["batch"]), *_again(row)] for row in raw("cached")["again"]]
    return table(["batch", *_AGAIN], rows)


def recordings() -> str:
    """What a recording takes, from how many steps it pays, and what is left when the host takes no time."""
    head = ["S", "recording: untraced", "mass", "all", "pays from step: untraced", "mass", "all"]
    head += ["kernels alone: untraced", "mass", "all"]
    rows, ways = [], ("replayed", "mass", "all")
    for row in raw("replays")["replay"]:
        cells = [f"{row['S']:,}"]
        cells += [f"{row[f'{way}_recording_s'] * 1e3:.0f} ms" for way in ways]
        steps = [row[f"{way}_pays_from"] for way in ways]
        cells += ["–" if n is None else str(math.ceil(n) + 1) for n in steps]
        cells += [f"{row['replay_alone_ms'][way]:.1f} ms" for way in ways]
        rows.append(cells)
    return table(head, rows)


_KINDS = {"causal": "token by token", "blocks": "in blocks of 32"}


def cached(some: list[Any] | None = None) -> str:
    """Cached decodings by batch; a step in ms, and the whole over two ways without tracing."""
    head = ["decoding", "batch", "base", "launched untraced", "replayed untraced", "mass", "all"]
    head += ["eager", "mass over replayed", "all over replayed"]
    rows = []
    for row in raw("cached")["cached"] if some is None else some:
        base = "stock" if "stock_s" in row else "launched"
        named = "stock" if base == "stock" else "own, launched"
        cells = [_KINDS[row["kind"]], str(row["batch"])]
        cells.append(f"{named}, {row[f'{base}_s'] / row['steps'] * 1e3:.1f} ms a step")
        for way in ("launched", "replayed", "mass", "all", "eager"):
            known = f"{way}_s" in row and way != base
            name = f"{way}_over_{base}"
            cells.append(between(row[name], row[f"{name}_range"]) if known else "–")
        for way in ("mass", "all"):
            cells.append(between(row[f"{way}_over_replayed"], row[f"{way}_over_replayed_range"]))
        rows.append(cells)
    return table(head, rows)


def cached_before() -> str:
    """The same of an earlier run, which had more ways and other kernels."""
    return cached(raw("cached")["before"]["cached"])


def cached_recordings() -> str:
    """What recording a cached decoding takes, and from which token on it pays."""
    ways = ("replayed", "mass", "all")
    head = ["decoding", "batch", "recording: untraced", "mass", "all"]
    head += ["pays from step: untraced", "mass", "all", "launched, a step: mass", "all"]
    head += ["kernels alone: untraced", "mass", "all"]
    rows = []
    for row in raw("cached")["cached"]:
        cells = [_KINDS[row["kind"]], str(row["batch"])]
        cells += [f"{row[f'{way}_recording_s'] * 1e3:.0f} ms" for way in ways]
        steps = [row[f"{way}_pays_from"] for way in ways]
        cells += ["–" if n is None else str(math.ceil(n) + 1) for n in steps]
        cells += [f"{row[f'{way} launched_s_a_step'] * 1e3:.0f} ms" for way in ways[1:]]
        alone = [[ms for kind, ms in row["replay_alone_ms"] if kind == way] for way in ways]
        cells += [" and ".join(f"{ms:.1f}" for ms in some) + " ms" for some in alone]
        rows.append(cells)
    return table(head, rows)


def large_batch() -> str:
    rows = []
    for row in raw("replays")["whole"]:
        if "rounds_s" in row:  # of several rounds
            ratio_of = between(row["ratio"], row["ratio_range"])
            taken, step = (statistics.median(row[name]) for name in ("rounds_s", "median_step_s"))
        else:
            ratio_of, taken, step = times(row["ratio"]), row["s"], row["median_step_s"]
        rows.append([row["way"], f"{taken:.2f} s", ratio_of, f"{step * 1e3:.0f} ms"])
    return table(["way", "time", "over plain", "a step"], rows)


def launched_again() -> str:
    """Single forwards, launched, in the run of the replays."""
    rows = [
        [f"{row['batch']} × {row['S']:,}", f"{row['plain_ms']:.1f} ms"]
        + [between(row[way], row[f"{way}_range"]) for way in ("mass", "groups", "all")]
        + [ratio(row, "eager")]
        for row in raw("replays")["LLaDA-8B"]
    ]
    return table(["batch × S", "plain", "mass", "with groups", "all", "eager"], rows)


def overhead() -> str:
    """One forward on a CPU, by length and way: time over the plain one, and peak memory beyond it."""
    found = raw("overhead")["rows"]
    ways = list(dict.fromkeys(row["way"] for row in found if row["way"] != "plain"))
    rows = []
    for size in dict.fromkeys(row["S"] for row in found):
        here = {row["way"]: row for row in found if row["S"] == size}
        plain = here["plain"]
        cells = [f"{size:,}", f"{plain['ms']:.0f} ms"]
        for way in ways:
            more = max(0.0, here[way]["peak_bytes"] - plain["peak_bytes"])
            row = here[way]
            cost = between(row["median_ratio"], [row["ratio_low"], row["ratio_high"]], digits=2)
            cells.append(f"{cost}, {more / 1e6:.0f} MB")
        rows.append(cells)
    return table(["S", "plain", *ways], rows)


def bound() -> str:
    """The least that mass can cost on a CPU: its product alone, and with exponentials and sums."""
    return table(
        ["S", "a plain layer", "q·kᵀ once more", "with exponentials and sums"],
        [
            [f"{row['S']:,}", f"{row['layer_ms']:.2f} ms"]
            + [
                f"{row[f'{part}_ms']:.2f} ms, {between(row[part], row[f'{part}_range'], digits=2)}"
                for part in ("product", "sums")
            ]
            for row in raw("bound")["rows"]
        ],
    )


def blocks() -> str:
    """Decoding in blocks, cached and not: every way of one run, over the plain one with the same cache."""
    ways = json.loads((HERE / "blocks.json").read_text())["ways"]
    named = {"plain": "not traced", "mass": "traced: mass", "all": "traced: all statistics"}
    rows = [
        [
            "exact" if row["cache"] else "none",
            named[row["kept"]],
            f"{row['cpu_s']:.2f} s",
            "1"
            if row["kept"] == "plain"
            else between(row["ratio"], [row["ratio_low"], row["ratio_high"]], digits=2),
            f"{row['rows']:,}",
            f"{row['cache_bytes'] / 1e6:.1f} MB" if row["cache"] else "–",
            f"{row['trace_bytes'] / 1e6:.0f} MB" if row["trace_bytes"] else "–",
        ]
        for row in ways
    ]
    return table(["cache", "way", "CPU", "over plain", "rows computed", "K/V kept", "trace"], rows)


def study_shard() -> str:
    """A study's shard in two states of the package, two runs of each."""
    runs = json.loads((HERE / "study_shard.json").read_text())
    first = runs["before"][0]
    rows = [
        [name, *(" / ".join(f"{run[name]:g}" for run in runs[state]) for state in runs)]
        for name in first
        if isinstance(first[name], float)
    ]
    return table(["", *runs], rows)


def study_shard_h200() -> str:
    """A shard of an 8B model on a GPU in three states of the package; ratios to the mean untraced run."""
    rows = []
    for state, run in json.loads((HERE / "study_shard_h200.json").read_text())["states"].items():
        plain = statistics.mean(run["untraced (s)"])
        viewed = next(name for name in run if name.endswith("viewed (s)"))
        traced, shown = (statistics.mean(run[way]) for way in ("nobody views (s)", viewed))
        memory = " and ".join(
            f"{peak:.1f} GB" for peak in run.get("peak beyond the model (GB)", [])
        )
        rows.append([
            state,
            ", ".join(f"{seconds:.1f}" for seconds in run["untraced (s)"]),
            f"{traced:.1f} s, {traced / plain:.2f}×",
            f"{statistics.mean(run['GPU busy (%)']):.0f} %",
            f"{shown:.1f} s, {shown / plain:.2f}× ({viewed.partition(' ')[0]})",
            memory or "–",
        ])  # fmt: skip
    head = ["state", "untraced (s)", "traced, nobody views", "GPU busy"]
    return table([*head, "with viewed examples", "peak beyond the model"], rows)


def reads() -> str:
    """Single forwards over a finished text (`Model.read`) whose size repeats, over plain launched ones."""
    rows = [
        [f"{row['S']:,}", f"{row['plain_ms']:.1f} ms", f"{row['mass']:.2f}×", f"{row['all']:.2f}×"]
        for row in raw("reads")["reads"]
    ]
    return table(["S", "plain, launched", "mass", "all"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "replayed": replayed, "recordings": recordings, "large-batch": large_batch, "overhead": overhead,
    "launched-again": launched_again, "bound": bound,
    "forwards": forwards, "long": long, "kernel": kernel, "exact": exact, "decodings": decodings,
    "before": before, "layers": layers, "profile": profile, "cost": cost,
    "ablation": ablation, "causal": causal, "causal-speed": causal_speed,
    "blocks": blocks, "cached": cached, "cached-recordings": cached_recordings,
    "cached-before": cached_before, "cached-again": cached_again, "replayed-again": replayed_again,
    "peers-llada": partial(peers.of_family, "LLaDA"),
    "peers-dream": partial(peers.of_family, "Dream"),
    "peers-reuse": peers.reused, "peers-abilities": peers.abilities,
    "scale-workers": scale.workers, "scale-ceiling": scale.ceiling, "scale-stored": scale.stored,
    "scale-capacity": scale.capacity,
    "long-decoding": long_parts.decoding, "streamed": long_parts.streamed,
    "together": long_parts.together,
    "live": live, "reads": reads, "study-shard": study_shard, "study-shard-h200": study_shard_h200,
}  # fmt: skip
ON: dict[Path, dict[str, Callable[[], str]]] = {PAGE: TABLES, CLUSTERS: {"gpu-hours": gpu_hours}}


def written(text: str, page: Path = PAGE) -> str:
    """The page with every table as the results give it."""
    for name, make in ON[page].items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        new = make().replace("\\", r"\\")
        text, n = block.subn(rf"\g<1>{new}\n\g<2>", text)
        assert n == 1, f"{page.name} has {n} places for the table {name!r}; it needs one"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    for page in ON:
        text = page.read_text()
        new = written(text, page)
        if not args.check:
            page.write_text(new)
        elif new != text:
            sys.exit(f"{page.name} is out of date: run python bench/tables.py")


if __name__ == "__main__":
    main()

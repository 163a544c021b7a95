"""What a long trace takes that is written while it is recorded: bytes on disk, peak memory, seconds.

    python bench/streaming.py --json bench/streaming.json    # 32 layers × 32 heads of width 4, on a CPU
    python bench/streaming.py --shape LLaDA-8B --device cuda --seconds 0  # the true widths, all steps

The statistics of a model have the size of its layers, heads and positions, whatever its width: narrow heads
make traces of an 8B model's size where there is no GPU. Weights are drawn. `--seconds`: a decoding that takes
longer is ended after so many, as by Ctrl-C; what it left is opened, and the size of all steps is worked out.

Memory is what the process held without files (RssAnon; Linux alone) beyond what it held after a decoding of
two steps: looked at every 20 ms, and its most in each 128th of the steps, which shows whether it grows.
"""

import argparse
import gc
import json
import platform
import shutil
import tempfile
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from shapes import SHAPES
from transformers import LlamaConfig, LlamaForCausalLM

import floatscope as fs

PARTS = 128


def build(shape: str, device: str) -> fs.Model:
    sizes = SHAPES[shape]
    config = LlamaConfig(
        **sizes, max_position_embeddings=4096, is_causal=False, attn_implementation="sdpa"
    )
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        torch.set_default_dtype(dtype)
        net = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    mask = sizes["vocab_size"] - 1
    return fs.load(net, family="LLaDA", direction="bidirectional", shift=0, mask_id=mask)


def held() -> int:
    """Memory held now, in bytes, without mapped files."""
    status = Path("/proc/self/status").read_text()
    if "RssAnon:" not in status:
        return int(status.split("VmRSS:")[1].split()[0]) * 1024
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


class Peaks:
    """The most that was held since `since`, by a thread that looks."""

    def __init__(self) -> None:
        self.most, self._end = held(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._end.wait(0.02):
            self.most = max(self.most, held())

    def take(self) -> int:
        found, self.most = max(self.most, held()), held()
        return found

    def close(self) -> None:
        self._end.set()
        self._thread.join()


class Ended(Exception):
    """The time is over."""


def streamed(args: argparse.Namespace) -> dict[str, Any]:
    model = build(args.shape, args.device)
    prompt = [5 + i % 200 for i in range(args.prompt)]
    options = {"keep": None if args.keep == "all" else args.keep.split(","), "dtype": args.dtype}
    folder = Path(tempfile.mkdtemp(prefix="streaming", dir=args.folder))
    try:
        short = fs.Confidence(length=args.tokens, steps=2)
        model.trace(prompt, short, to=folder / "short.zarr", **options)
        return measured(args, model, prompt, options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measured(
    args: argparse.Namespace, model: fs.Model, prompt: list[int], options: Any, folder: Path
) -> dict[str, Any]:
    gc.collect()
    level, peaks, by_part, done_at = held(), Peaks(), [], []
    cpu, start = time.process_time(), time.perf_counter()

    def progress(done: int, of: int) -> None:
        done_at.append(time.perf_counter() - start)
        if done % max(1, args.steps // PARTS) == 0:
            by_part.append(peaks.take() - level)
        if args.seconds and done_at[-1] > args.seconds and done < of:
            raise Ended

    path = folder / "t.zarr"
    sampler = fs.Confidence(length=args.tokens, steps=args.steps, stop_at_eos=False)
    with suppress(Ended):
        model.trace(prompt, sampler, to=path, progress=progress, **options)
    traced, processor = time.perf_counter() - start, time.process_time() - cpu
    by_part.append(peaks.take() - level)
    files = [one for one in path.rglob("*") if one.is_file()]
    written = sum(one.stat().st_size for one in files)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where it was ended, that it was
        trace = fs.Trace.load(path, lazy=True)
        steps = trace.data.sizes["step"]
        last = fs.Trace(trace.data.isel(step=[-1])).mass  # one step is read
        whole = abs(float(last.sum("key").mean()) - 1) < 1e-3
    opened = peaks.take() - level
    peaks.close()
    return {
        "shape": args.shape, "device": device_name(args.device), "keep": args.keep,
        "dtype": args.dtype, "prompt": args.prompt, "tokens": args.tokens, "steps": args.steps,
        "layers": model.n_layers, "heads": model.n_heads,
        "steps_written": steps, "seconds": round(traced, 1), "cpu_s": round(processor, 1),
        "decoding_s": round(done_at[-1], 1), "bytes": written, "files": len(files),
        "bytes_a_step": round(written / steps), "bytes_of_all": round(written / steps * args.steps),
        "peak_bytes": max(by_part), "peak_by_part": by_part, "opened_peak_bytes": opened,
        "sums_to_one": whole,
    }  # fmt: skip


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=list(SHAPES), default="narrow")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=1024)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--keep", default="mass", help="names with commas, or all")
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float32")
    parser.add_argument("--seconds", type=float, default=360, help="0: until it is done")
    parser.add_argument("--folder", help="where the store lies meanwhile; it is removed")
    parser.add_argument("--json", type=Path, help="the row is put in, in place of one like it")
    args = parser.parse_args()
    row = streamed(args)
    print(json.dumps(row, indent=1))
    if args.json:
        rows = json.loads(args.json.read_text()) if args.json.exists() else []
        like = ("shape", "device", "keep", "dtype", "tokens", "steps")
        rows = [one for one in rows if any(one[name] != row[name] for name in like)]
        args.json.write_text(json.dumps([*rows, row], indent=1) + "\n")


if __name__ == "__main__":
    main()

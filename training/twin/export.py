"""From a run to an adapter as it is shipped: PEFT's names, int8 with a scale for each component.

    python -m training.twin.export --run trained/mdm --out src/floatscope/models/embedded/twin/mdm

`lora_A` and `lora_B` are rounded to int8; norms and the mask's embedding stay float32. `rounded` is
what the shipped model computes with, so evaluation can use it before anything is written. The training
machine may lack the package: `--pieces DIR` writes the weights there in files of at most 15 MiB, and
`--run DIR` takes such a folder too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from training.twin.parent import LAYERS, MAPS, MASK

SELF_CHECK = (
    "<|im_start|>user\nWho was the first person on the moon?<|im_end|>\n<|im_start|>assistant\n"
)
FLOATSCOPE = {"mdm": {"direction": "bidirectional", "shift": 1, "mask_id": MASK}, "arm": {}}


def to_int8(value: Tensor, across: int) -> tuple[Tensor, Tensor]:
    """(integers, scale): what lies along `across` shares a scale, which broadcasts."""
    scale = value.abs().amax(across, keepdim=True).clamp(min=1e-12) / 127
    return (value / scale).round().clamp(-127, 127).to(torch.int8), scale


def rounded(name: str, value: Tensor) -> Tensor:
    """A parameter of a run as it is after shipping; only A and B are rounded, a component at a time."""
    if not name.startswith(("a.", "b.")):
        return value
    whole, scale = to_int8(value, across=-1 if name.startswith("a.") else -2)
    return whole.float() * scale


def weights(run: Path) -> dict[str, Tensor]:
    """The trained parameters of a run's folder, or of a folder of pieces."""
    if (run / "state.safetensors").exists():
        with safe_open(run / "state.safetensors", "pt") as file:
            keys = [k for k in file.keys() if k.startswith("weight.")]  # noqa: SIM118
            return {k.removeprefix("weight."): file.get_tensor(k) for k in keys}
    parts = {k: v for file in sorted(run.glob("*.safetensors")) for k, v in load_file(file).items()}
    if not parts:
        raise SystemExit(f"error: neither state.safetensors nor pieces in {run}")
    out: dict[str, list[Tensor]] = {}
    for key in sorted(parts, key=lambda k: (k.partition("@")[0], int(k.partition("@")[2] or 0))):
        out.setdefault(key.partition("@")[0].removeprefix("weight."), []).append(parts[key])
    return {name: torch.cat(each).float() for name, each in out.items()}


def pieces(tensors: dict[str, Tensor], out: Path, stem: str, most: int = 15 * 2**20) -> None:
    """The tensors in bf16, in files of at most `most` bytes; a stack of layers goes in tens."""
    cut: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if value.ndim == 3:
            cut |= {f"{name}@{i}": value[i : i + 10] for i in range(0, len(value), 10)}
        else:
            cut[name] = value
    part: dict[str, Tensor] = {}
    size, number = 0, 0
    for name in [*sorted(cut), ""]:
        more = 2 * cut[name].numel() + 200 if name else most
        if part and size + more > most:
            save_file(part, out / f"{stem}.{number}.safetensors")
            part, size, number = {}, 0, number + 1
        if name:
            part[name] = cut[name].bfloat16().cpu().contiguous()
            size += more


def named(trained: dict[str, Tensor]) -> dict[str, Tensor]:
    """Under PEFT's names, one tensor a layer."""
    out: dict[str, Tensor] = {}
    for name in MAPS:
        for letter in "ab":
            stack = trained[f"{letter}.{name.replace('.', '_')}"]
            for layer in range(LAYERS):
                out[f"model.layers.{layer}.{name}.lora_{letter.upper()}.weight"] = stack[layer]
    for layer in range(LAYERS):
        for i, norm in enumerate(("input_layernorm", "post_attention_layernorm")):
            out[f"model.layers.{layer}.{norm}.weight"] = trained["norms"][layer, i]
    out["model.norm.weight"] = trained["norm"]
    out["model.embed_tokens.token_adapter.trainable_tokens_delta"] = trained["mask"][None]
    return out


def export(run: Path, out: Path) -> None:
    """The directory that `floatscope.load` takes, and its checksums beside it."""
    import floatscope as fs
    from floatscope.models import adapters

    branch = out.name
    trained = weights(run)
    rank = trained["a.self_attn_q_proj"].shape[1]
    config = {"r": rank, "lora_alpha": rank, "trainable_token_indices": {"embed_tokens": [MASK]}}
    adapters.write(out, named(trained), config, int8=True)
    if FLOATSCOPE[branch]:
        (out / "floatscope.json").write_text(json.dumps(FLOATSCOPE[branch]) + "\n")
    (out / "selfcheck.json").unlink(missing_ok=True)
    model = fs.load("twin/parent", adapter=out, device="cpu", dtype="float32")
    tokens = model.tokenizer(SELF_CHECK, add_special_tokens=False)["input_ids"]
    if branch == "mdm":
        tokens = [*tokens, *[MASK] * 8]
    adapters.write_selfcheck(out, model, tokens, range(len(tokens) - 8, len(tokens)))
    sums = out.parent / "checksums.json"
    known = json.loads(sums.read_text()) if sums.exists() else {}
    files = sorted(p for p in out.iterdir() if p.is_file())
    known[branch] = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    sums.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    print(f"{out}: {sum(p.stat().st_size for p in files) / 1e6:.2f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, help=".../twin/mdm or .../twin/arm")
    parser.add_argument("--pieces", type=Path, help="write the weights in pieces there instead")
    args = parser.parse_args()
    if args.pieces:
        args.pieces.mkdir(parents=True, exist_ok=True)
        pieces(weights(args.run), args.pieces, args.run.name)
    elif args.out is None or args.out.name not in FLOATSCOPE:
        raise SystemExit("error: give --out, ending in mdm or arm; or --pieces")
    else:
        export(args.run, args.out)


if __name__ == "__main__":
    main()

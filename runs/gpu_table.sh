#!/usr/bin/env bash
# The GPU tables of BENCHMARKS.md and bench/gpu.json behind them: what tracing costs with the shapes of
# LLaDA-8B, Dream-7B and Llama-8B, random weights, bfloat16; exactness, whole decodings, a profile.
# One H200 with torch, Triton, transformers and jaxtyping: about 10 minutes. flash-colreduce is compared
# if it is installed. The published tables come from three runs; bench/gpu.json says which part from which.
set -euo pipefail
cd "$(dirname "$0")/.."
python bench/gpu.py --json bench/gpu.json --rounds 10 "$@"
python bench/tables.py

#!/usr/bin/env bash
# A study on one machine with several GPUs: one worker per GPU, each sees one of them. Stopped or killed,
# the same line goes on from where it was. CUDA_VISIBLE_DEVICES=0,1,2,3 leaves the other GPUs alone.
# Run on: no machine with several GPUs; docs/how-to/clusters.md says what was run instead.
set -euo pipefail
CONFIG=${CONFIG:-study.toml}   # what is asked; every field of `floatscope study`
OUT=${OUT:-run}

nvidia-smi --list-gpus
floatscope study --config "$CONFIG" --out "$OUT" --device cuda

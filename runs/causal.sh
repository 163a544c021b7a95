#!/usr/bin/env bash
# The causal questions of docs/findings.md: `ablation`, `tracing` and `lens` on the pair and on the twin. A
# quarter of an hour on two idle CPU cores for the pair with 24 questions.
#
#     runs/causal.sh [DIR] [further options of `floatscope study`, such as --questions 40 --side-questions 40]
set -euo pipefail
dir="${1:-causal}"
shift || true
floatscope study ablation tracing lens --model pair/mdm --model pair/arm --data world:four --limit 24 \
    --questions 24 --side-questions 16 --length 8 --steps 8 --view 0 --shard 4 --device cpu \
    --out "$dir/pair" "$@"
floatscope study ablation --model twin/mdm --data world:four --questions 16 --side-questions 2 \
    --length 8 --steps 8 --view 0 --shard 2 --device cpu --out "$dir/twin-ablation" "$@"
floatscope study tracing lens --model twin/mdm --data world:four --limit 8 --questions 8 \
    --length 8 --steps 8 --view 0 --shard 2 --device cpu --out "$dir/twin-tracing" "$@"

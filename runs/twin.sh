#!/usr/bin/env bash
# The claims and the table of docs/twin.md: 24 texts of long:continuation, 64 tokens in 64 steps, three models
# and their permuted weights. A few minutes on a GPU; hours on CPU cores, where --limit 4 is a beginning.
#
#     runs/twin.sh [DIR] [further options of `floatscope study`, such as --limit 4]
set -euo pipefail
cd "$(dirname "$0")/.."
dir="${1:-twin-run}"
shift || true
floatscope study floating structure geometry decoding changes --plugin examples/twin_table.py \
    --model twin/mdm --model twin/arm --model twin/parent --data long:continuation \
    --limit 24 --questions 24 --length 64 --steps 64 --dtype float32 --view 0 --out "$dir" "$@"
python examples/twin_table.py "$dir"

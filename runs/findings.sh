#!/usr/bin/env bash
# The answers behind docs/explanation/findings.md: the pair under passages, masked sinks, masked structure and all
# samplers, 200 questions per setting. Writes DIR/one and DIR/hops, each a run with its report, and
# prints the tables. About six minutes on one H200 by the script before this one; hours on two CPU cores.
#
#     runs/findings.sh [DIR] [further options of `floatscope study`, such as --questions 4]
#
# The published file (docs/findings.json.gz) drew random controls, noise and random orders with seed 0;
# here all that is drawn follows --seed 77, as the questions do. Tried with --questions 4, a quarter of an
# hour on two busy cores.
set -euo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
dir="${1:-findings}"
shift || true
asked=(--model pair/mdm --model pair/arm --questions 200 --seed 77 --length 10 --set dtype=float32
       --set decoding.frequencies=pair --view 0 --skip-bad --plugin "$here/examples/findings.py")
floatscope study knowledge robustness decoding pair-conditions pair-samplers \
    --data world:nine "${asked[@]}" --out "$dir/one" "$@"
floatscope study decoding pair-samplers --data world:hops "${asked[@]}" --out "$dir/hops" "$@"
python "$here/examples/findings_table.py" "$dir"

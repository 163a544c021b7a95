#!/usr/bin/env bash
# The claims of docs/findings.md: all nine studies on the pair, 64 prompts traced, 200 questions a setting,
# three untrained controls. Five and a half minutes on 16 CPU cores (86 minutes of CPU time with the findings).
#
#     runs/claims.sh [DIR] [further options of `floatscope study`, such as --limit 8 --questions 20]
set -euo pipefail
dir="${1:-claims}"
shift || true
floatscope study --model pair/mdm --model pair/arm --data world:mixed --traced-as passages=9 \
    --limit 64 --questions 200 --gain-questions 400 \
    --length 10 --steps 5 --frequencies pair --controls 3 --view 0 --device cpu --out "$dir" "$@"

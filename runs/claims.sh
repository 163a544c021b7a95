#!/usr/bin/env bash
# The claims of docs/explanation/findings.md on the pair: claim 3 on long texts, all others on questions of the world. Rules,
# n and controls are registered in docs/registrations. A quarter of an hour on two idle CPU cores.
#
#     runs/claims.sh [DIR] [further options of `floatscope study`, such as --engine ray]
set -euo pipefail
cd "$(dirname "$0")/.."
dir="${1:-claims}"
shift || true
floatscope study floating geometry structure flow retrieval knowledge robustness decoding dormancy \
    --model pair/mdm --model pair/arm --data world:mixed --traced-as passages=6 --limit 40 \
    --questions 80 --set knowledge.gain_questions=256 --set side_questions=24 --length 10 --steps 5 --set decoding.frequencies=pair \
    --seed 1 --view 0 --set shard=8 --device cpu \
    --set "chosen_on=questions of other seeds; the number of questions by power calculations on planted answers" \
    --registration docs/registrations/pair_claims.json --out "$dir/questions" "$@"
floatscope study movement --model pair/mdm --data long:continuation --skip 48 --limit 48 --controls 12 \
    --length 64 --steps 32 --sampler confidence,block_length=8,temperature=0.7 --view 0 --set shard=2 --device cpu \
    --set "chosen_on=$(python -c 'import json; print(json.load(open("docs/registrations/pair_movement.json"))["runs"]["run"]["settings_chosen_on"])')" \
    --registration docs/registrations/pair_movement.json --out "$dir/movement" "$@"

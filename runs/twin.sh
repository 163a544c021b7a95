#!/usr/bin/env bash
# The tables and claims of docs/explanation/twin.md: 64 tokens in 64 steps of three kinds of text, three models, their
# permuted weights, and the parent's weights seeing both ways. A quarter of an hour on one GPU; on CPU cores
# hours, where --limit 4 --questions 4 is a beginning.
#
#     runs/twin.sh [DIR] [further options of `floatscope study`, such as --limit 4]
set -euo pipefail
cd "$(dirname "$0")/.."
dir="${1:-twin-run}"
shift || true
three=(--model twin/mdm --model twin/arm --model twin/parent)
long=(--plugin examples/twin_table.py --length 64 --steps 64 --view 0 --set dtype=bfloat16 --set batch=6
    --sampler confidence,block_length=8,temperature=0.7)

# Claim 3, as registered; on CPU cores half an hour.
floatscope study movement --model twin/mdm --data long:continuation --skip 48 --limit 32 --controls 8 \
    --length 64 --steps 32 --sampler confidence,block_length=8,temperature=0.7 --view 0 --set shard=1 --device cpu \
    --set "chosen_on=$(python -c 'import json; print(json.load(open("docs/registrations/twin_movement.json"))["runs"]["run"]["settings_chosen_on"])')" \
    --registration docs/registrations/twin_movement.json --out "$dir/movement"
# Claims 1, 2, 4 to 6 and 9, and the table of continuations.
floatscope study floating structure geometry decoding changes "${three[@]}" "${long[@]}" \
    --data long:continuation --limit 96 --questions 48 --out "$dir/continuation" "$@"
for kind in answer summary; do
    floatscope study changes "${three[@]}" "${long[@]}" \
        --data "long:$kind" --limit 48 --out "$dir/$kind" "$@"
done
# What the mask alone does.
floatscope study changes --model "both=twin/parent,direction=bidirectional,shift=1,mask_id=4" "${long[@]}" \
    --data long:continuation --limit 48 --out "$dir/both" "$@"
# Claims 7, 8 and 10.
floatscope study knowledge robustness dormancy --model twin/mdm --model twin/arm --data world:mixed \
    --traced-as passages=6 --limit 48 --questions 100 --set knowledge.gain_questions=128 --length 16 --view 0 \
    --set dtype=bfloat16 --set batch_size=48 --set batch=12 --controls 0 --out "$dir/world" "$@"
for kind in continuation answer summary both; do python examples/twin_table.py "$dir/$kind"; done

#!/usr/bin/env bash
# The embedded pair: trains both models into trained/mdm and trained/arm, then measures the pair that the
# package ships and writes its card and its emergence figure (src/floatscope/models/embedded, docs).
# Training: one H200, 16,520 steps or 811,991,040 tokens each, 478 s (diffusion) and 386 s
# (autoregressive); another GPU fits other steps into the time, so give STEPS to repeat the published
# number. Measuring runs anywhere; 18,000 questions by position are quick on a GPU alone.
#
#     CORPUS=folder-with-the-natural-text [STEPS=16520] runs/pair.sh
#
# training/README.md says what the corpus is. Shipping other weights means copying trained/*/release to
# the embedded folder with new checksums; nothing here does that.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${CORPUS:?give the folder with the natural text, see training/README.md}"
budget=(--seconds 490)
[ -z "${STEPS:-}" ] || budget=(--steps "$STEPS")
python -m training.train --objective mdm --corpus "$CORPUS" --data trained/data --out trained/mdm "${budget[@]}"
steps="$(python -c 'import json; print(json.load(open("trained/mdm/run.json"))["total_steps"])')"
python -m training.train --objective arm --corpus "$CORPUS" --data trained/data --out trained/arm --steps "$steps"

shipped=src/floatscope/models/embedded
python -m training.measure --out "$shipped/results.json"
python -m training.positions --out "$shipped/positions.json"
python -m training.card --tables "$shipped" --out "$shipped/CARD.md"
python -m training.figure --tables "$shipped" --out docs/emergence.svg

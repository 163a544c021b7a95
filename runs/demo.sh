#!/usr/bin/env bash
# demo/report.html and demo/summary.json: every study on the embedded pair, as in the README's pictures.
# Two CPU cores, no GPU, no download: about five minutes, and one more where .venv is not there yet.
# Stopped, it goes on from where it was.
set -euo pipefail
cd "$(dirname "$0")/.."
make demo

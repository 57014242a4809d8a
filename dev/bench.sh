#!/usr/bin/env bash
# Run the benchmarks that there are, each a program that prints its own results.
set -euo pipefail
cd "$(dirname "$0")/.."

found=0
for program in benchmarks/bench_*.py; do
    [ -e "$program" ] || continue
    found=1
    echo "== $program"
    .venv-verl/bin/python -m "benchmarks.$(basename "$program" .py)"
done
[ $found = 1 ] || echo "benchmarks: none yet, skipped"

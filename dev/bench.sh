#!/usr/bin/env bash
# Run the benchmarks, then bring plots and documentation up to date with what was measured.
#
#   bench.sh [SECTION...]      BENCH_QUICK=1: briefly, to see that everything runs
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv-bench/bin/python
$python -m benchmarks.run "$@"
if [ -z "${BENCH_QUICK:-}" ]; then
    $python -m benchmarks.plots
    $python -m benchmarks.report
fi

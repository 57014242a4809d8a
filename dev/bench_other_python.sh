#!/usr/bin/env bash
# What one generation costs in another Python, into the same results: bench_other_python.sh python3.12
#
# verl itself stands in there, but for its tracing: see benchmarks/verl_standin/README.md
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1
name=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')
folder=build/bench-python/$name
if [ ! -e "$folder/complete" ]; then
    mkdir -p "$(dirname "$folder")"
    rm -rf "$folder"
    "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --editable '.[otlp]' \
        'weave==0.54.*' 'transformers==5.10.*' mlflow-skinny
    touch "$folder/complete"
fi

source=$(.venv-bench/bin/python -c 'import importlib.util as u; print(u.find_spec("verl").submodule_search_locations[0])')
standin=$folder/verl_standin
rm -rf "$standin"
cp -r benchmarks/verl_standin "$standin"
cp "$source/utils/rollout_trace.py" "$standin/verl/utils/"
PYTHONPATH=$PWD/$standin "$folder/bin/python" -m benchmarks.run --no-curves ${2:-generation turns}
if [ -z "${BENCH_QUICK:-}" ]; then
    .venv-bench/bin/python -m benchmarks.report
fi

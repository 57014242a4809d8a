#!/usr/bin/env bash
# Build wheel and sdist into dist/, then install each into a bare environment, run a user's program
# there as a user does, and check that program's types against what is installed.
#
#   dist.sh PYTHON      one with build, hatchling and mypy
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
tools=$1
unset PYTHONPATH
program=$root/dev/release/program.py

rm -rf dist build/dist
"$tools" -m build --no-isolation --outdir dist . >build-log 2>&1 || { cat build-log; exit 1; }
rm -f build-log

for built in dist/*.whl dist/*.tar.gz; do
    bare=$root/build/dist/$(basename "$built")
    mkdir -p "$bare/run"
    "$tools" -m venv "$bare/venv"
    bin=$bare/venv/bin
    "$bin/pip" install --quiet --disable-pip-version-check "$root/$built"
    # Away from the clone: what is imported is what was installed.
    cd "$bare/run"
    export OTEL_ROLLOUT_DIR=$bare/run/store OTEL_TRACES_EXPORTER=weave
    export WANDB_API_KEY="" NETRC=/dev/null PATH=$bin:$PATH
    "$bin/python" -c "
import otel_rollout, pathlib
where = pathlib.Path(otel_rollout.__file__)
assert where.is_relative_to('$bare'), where
assert (where.parent / 'py.typed').exists()
assert list((where.parent / 'local').rglob('*.html')), 'the viewer has no pages'
"
    opentelemetry-instrument python "$program"
    otel-rollout show store >show.txt
    grep -q "execute_tool search" show.txt
    otel-rollout export store -o rollouts.jsonl
    test "$(wc -l <rollouts.jsonl)" = 1
    otel-rollout doctor store --offline >doctor.txt
    "$bin/pip" check
    "$tools" -m mypy --strict --no-incremental --python-executable "$bin/python" "$program"
    cd "$root"
    echo "$(basename "$built"): installs, runs, and its types hold"
done

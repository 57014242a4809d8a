#!/usr/bin/env bash
# A real verl rollout under Ray, traced without a change to its code, into .demo/store: no account,
# no network. Arguments go to examples/verl_calculator/train.py.
set -euo pipefail
cd "$(dirname "$0")/.."

export OTEL_TRACES_EXPORTER=weave OTEL_METRICS_EXPORTER=none OTEL_LOGS_EXPORTER=none
export OTEL_ROLLOUT_DIR=$PWD/.demo/store
# Without credentials what is traced stays on this machine.
export NETRC=/dev/null
unset WANDB_API_KEY
mkdir -p "$OTEL_ROLLOUT_DIR"

cd examples/verl_calculator
exec ../../.venv-verl/bin/opentelemetry-instrument ../../.venv-verl/bin/python train.py "$@"

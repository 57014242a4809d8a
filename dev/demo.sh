#!/usr/bin/env bash
# A real verl rollout under Ray, traced without a change to its code, into .demo: no account, no
# network. Arguments go to `otel-rollout demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv-verl/bin/otel-rollout demo "$@" .demo

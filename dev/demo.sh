#!/usr/bin/env bash
# A real verl rollout under Ray, traced without a change to its code, into .demo: no account, no
# network. ENGINE=vllm: with verl's own vLLM server. Arguments go to `otel-rollout demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-verl
if [ "${ENGINE:-}" = vllm ]; then
    "$(command -v python3.11 || command -v python3)" dev/envs.py build vllm
    venv=.venv-vllm
    export ENGINE # the example reads it
fi
rm -rf .demo
exec "$venv"/bin/otel-rollout demo "$@" .demo

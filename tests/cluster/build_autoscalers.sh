#!/usr/bin/env bash
# Builds KEDA's operator and metrics adapter, and the metrics server, from their Go modules: build_autoscalers.sh DIR
# Programs into DIR/bin, KEDA's CRDs into DIR/keda-crds. About 15 minutes of CPU and 5 GB of modules; what is there is kept.
# `make chart-e2e` does without: where they are missing, its tests of scaling are skipped.
set -euo pipefail
keda=2.21.0 metrics_server=0.9.0
dir=$(realpath -m "$1")
mkdir -p "$dir/bin" "$dir/build/keda"
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false

[ -x "$dir/bin/metrics-server" ] \
  || GOBIN=$dir/bin go install -trimpath -ldflags "-s -w" "sigs.k8s.io/metrics-server/cmd/metrics-server@v$metrics_server"

cd "$dir/build/keda"
# KEDA replaces this module in its own go.mod, which holds for nobody who builds it as a module.
rules=github.com/nexus-rpc/nexus-proto-annotations
printf 'module kedabuild\n\ngo 1.26.0\n\nreplace %s v0.1.0 => %s v0.1.1-0.20260629224316-835bd8d49cb4\n' $rules $rules > go.mod
go get "github.com/kedacore/keda/v2/cmd/operator@v$keda" "github.com/kedacore/keda/v2/cmd/adapter@v$keda"
for program in operator adapter; do
  [ -x "$dir/bin/keda-$program" ] && continue
  go build -trimpath -ldflags "-s -w" -o "keda-$program.part" "github.com/kedacore/keda/v2/cmd/$program"
  mv "keda-$program.part" "$dir/bin/keda-$program"  # whole, so that an interrupted build is not taken for a finished one
done
rm -rf "$dir/keda-crds"
cp -r --no-preserve=mode "$(go list -m -f '{{.Dir}}' github.com/kedacore/keda/v2)/config/crd/bases" "$dir/keda-crds"

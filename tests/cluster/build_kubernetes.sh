#!/usr/bin/env bash
# Builds Kubernetes 1.34, etcd and CoreDNS from their Go modules into BIN: build_kubernetes.sh BIN [WORK].
# About 15 minutes of CPU, 3 GB below WORK's Go caches; what lies in BIN already is not built again.
# 1.34 is the last line whose kubelet takes cgroup v1 without being told.
set -euo pipefail
version=1.34.4 etcd=3.6.16 coredns=1.15.0
bin=$(realpath -m "$1") work=$(realpath -m "${2:-$1/../build}")
mkdir -p "$bin" "$work/etcd" "$work/kubernetes"
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false

# A binary appears in BIN only when it is whole, so that an interrupted build is not taken for a finished one.
build() {  # NAME PACKAGE [LDFLAGS]
  [ -x "$bin/$1" ] && return
  echo "building $1"
  go build -trimpath -ldflags "-s -w ${3:-}" -o "$work/$1.part" "$2"
  mv "$work/$1.part" "$bin/$1"
}

if [ ! -x "$bin/etcd" ]; then
  cd "$work/etcd"
  printf 'module etcdbuild\n\ngo 1.24.0\n' > go.mod
  go get "go.etcd.io/etcd/server/v3@v$etcd"
  build etcd go.etcd.io/etcd/server/v3
fi

programs="kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy"
missing=$(for p in $programs; do [ -x "$bin/$p" ] || echo "$p"; done)
if [ -n "$missing" ]; then
  cd "$work/kubernetes"
  gomod=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
  # Kubernetes names its own staging modules at v0.0.0; only they are replaced.
  { printf 'module kubernetesbuild\n\ngo 1.24.0\n\nrequire k8s.io/kubernetes v%s\n\nreplace (\n' "$version"
    awk '$1 ~ /^k8s.io\// && $2 == "v0.0.0" {print $1}' "$gomod" | sort -u | sed "s#.*#\t& => & v0.${version#1.}#"
    echo ")"; } > go.mod
  go get $(for p in $programs; do echo "k8s.io/kubernetes/cmd/$p@v$version"; done)
  x=k8s.io/component-base/version  # without it the server says v0.0.0 and a chart's kubeVersion refuses it
  stamp="-X $x.gitVersion=v$version -X $x.gitMajor=1 -X $x.gitMinor=34 -X $x.gitTreeState=clean -X k8s.io/client-go/pkg/version.gitVersion=v$version"
  for p in $missing; do build "$p" "k8s.io/kubernetes/cmd/$p" "$stamp"; done
fi

# Names of services.
[ -x "$bin/coredns" ] || GOBIN=$bin go install -ldflags "-s -w" "github.com/coredns/coredns@v$coredns"

#!/usr/bin/env bash
# `make chart-e2e`: the chart on a real one-node Kubernetes, with real Kafka, PostgreSQL and S3 beside it.
# What it needs it makes once, below ~/.cache/forgewatch/kubernetes (an hour at most on two cores); each run is then
# minutes on a fresh cluster. Arguments go to pytest. FORGEWATCH_REPORT=FILE writes the figures there as JSON.
# Scaling by KEDA and by processor time is tested where build_autoscalers.sh was run for that folder.
set -euo pipefail
here=$(dirname "$(realpath "$0")") root=$(realpath "$(dirname "$0")/../..")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/forgewatch/kubernetes
python_bin=${PYTHON_BIN:-$root/.venv/bin}
export BIN=$cache/bin

[ "$(id -u)" = 0 ] || { echo "chart-e2e needs root: a kubelet mounts and makes control groups" >&2; exit 1; }
missing=""
for need in podman:podman mmdebstrap:mmdebstrap containerd:containerd runc:runc iptables:iptables conntrack:conntrack \
  ipset:ipset catatonit:catatonit npm:npm go:golang; do
  command -v "${need%:*}" > /dev/null || missing="$missing ${need#*:}"
done
[ -x /usr/lib/cni/bridge ] || missing="$missing containernetworking-plugins"
ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || missing="$missing postgresql"
[ -z "$missing" ] || { echo "chart-e2e needs: apt-get install --no-install-recommends$missing" >&2; exit 1; }
grep -q '^memory	[1-9]' /proc/cgroups || { echo "chart-e2e needs the control groups of version 1" >&2; exit 1; }

"$here/tools.sh" "$BIN"
"$here/build_kubernetes.sh" "$BIN" "$cache/build"
FORGEWATCH_IMAGE_TAG=$("$here/images.sh" "$cache/cluster/images")
export FORGEWATCH_IMAGE_TAG
(cd "$root" && "$python_bin/python" -c 'from deploy.local import broker; broker.kafka_jars(broker.CACHE)')

trap '"$here/cluster.sh" down "$cache/cluster"' EXIT
"$here/cluster.sh" up "$cache/cluster"
FORGEWATCH_CLUSTER=$cache "$here/cluster.sh" run "$cache/cluster" "$python_bin/pytest" -s -x -m cluster "$root/tests/cluster" "$@"

#!/usr/bin/env bash
# A real one-node Kubernetes in namespaces of its own: cluster.sh up DIR | run DIR CMD... | down DIR
#   up    starts it from the programs in $BIN and the images (podman save) in DIR/images; nothing but DIR outlives it
#   run   runs a command inside: $KUBECONFIG, kubectl and helm reach the cluster, and the node is 10.77.0.1
#   down  ends it and everything that `run` started
# As root, on Linux with cgroup v1 controllers and Debian's containerd, runc and containernetworking-plugins.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
verb=$1 dir=$(realpath -m "$2")
bin=$(realpath -m "${BIN:-${XDG_CACHE_HOME:-$HOME/.cache}/forgewatch/kubernetes/bin}")

# The process that is the namespaces' first one, if it runs; a stranger with its number does not count.
first() {
  local pid
  pid=$(cat "$dir/first.pid" 2>/dev/null) && grep -qzxF "$here/node.sh" "/proc/$pid/cmdline" 2>/dev/null && echo "$pid"
}

inside() {  # CMD...: joins the mount, network, process and name namespaces
  exec nsenter -t "$(first)" -m -n -p -u env KUBECONFIG="$dir/kubeconfig" PATH="$bin:$PATH" sh -c 'cd "$0"; exec "$@"' "$PWD" "$@"
}

case $verb in
up)
  if first > /dev/null; then echo "a cluster runs in $dir" >&2; exit 1; fi
  mkdir -p "$dir/images"
  rm -f "$dir/started"
  setsid unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc \
    bash "$here/node.sh" "$dir" "$bin" > "$dir/node.log" 2>&1 < /dev/null &
  outer=$!
  until pgrep -P "$outer" > "$dir/first.pid"; do kill -0 "$outer"; sleep 0.05; done
  trap '[ $? = 0 ] || { tail "$dir/node.log" >&2; "$0" down "$dir"; }' EXIT
  trap 'exit 130' INT TERM
  for _ in $(seq 3000); do  # ten minutes: images of several GB may have to be unpacked
    [ -e "$dir/started" ] && break
    kill -0 "$outer"
    sleep 0.2
  done
  for _ in $(seq 600); do
    "$0" run "$dir" kubectl get node node1 2>/dev/null | grep -q ' Ready ' && exit 0
    sleep 0.2
  done
  echo "the node is not ready; its logs are in $dir" >&2
  exit 1;;
run)
  first > /dev/null || { echo "no cluster runs in $dir" >&2; exit 1; }
  shift 2
  inside "$@";;
down)
  pid=$(first) || exit 0
  kill -9 "$pid"  # the kernel ends whatever else is in its process namespace
  while [ -e "/proc/$pid" ]; do sleep 0.1; done
  for group in /sys/fs/cgroup/*/kubepods /sys/fs/cgroup/*/k8s.io; do
    [ -d "$group" ] && find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done;;
*) sed -n 2,5p "$0" >&2; exit 2;;
esac

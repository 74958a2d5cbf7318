#!/usr/bin/env bash
# The images of this tree as tars that a cluster takes in: images.sh DIR. The updater's is left out: it is several GB of
# CUDA, and its process that keeps the schedule runs in the worker's as well.
# Builds them (podman, which keeps the layers that have not changed) on a base from Debian packages; prints their tag.
set -euo pipefail
root=$(realpath "$(dirname "$0")/../..") dir=$(realpath -m "$1")
set -- worker torchserve
mkdir -p "$dir"
cd "$root"
export BASE=${BASE:-localhost/forgewatch-base:bookworm} BUILDER=podman
{
  export CONTAINERS_CONF=${CONTAINERS_CONF:-$root/.forgewatch/images/containers.conf}
  podman image exists "$BASE" && [ -e "$CONTAINERS_CONF" ] || helm/images/debian_base.sh "$BASE"
  helm/images/build.sh "$@"
  if ! podman image exists localhost/pause:1; then  # what holds a pod's namespaces: a static init
    scratch=$(mktemp -d)
    cp "$(command -v catatonit)" "$scratch/pause"
    printf 'FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause", "-P"]\n' > "$scratch/Dockerfile"
    podman build -q -t localhost/pause:1 "$scratch"
    rm -rf "$scratch"
  fi
  version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
  for name in localhost/pause:1 $(printf "localhost/forgewatch/%s:$version " "$@"); do
    tar=$dir/$(basename "${name%:*}").tar
    id=$(podman image inspect --format '{{.Id}}' "$name")
    [ -e "$tar" ] && [ "$(cat "$tar.id" 2>/dev/null)" = "$id" ] && continue
    rm -f "$tar"
    podman save -o "$tar" "$name"
    echo "$id" > "$tar.id"
  done
} >&2
echo "$version"

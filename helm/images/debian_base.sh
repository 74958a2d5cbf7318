#!/usr/bin/env bash
# A base image from Debian packages, where no registry of images can be reached: debian_base.sh [TAG]
# Needs root, mmdebstrap, podman. It also writes .forgewatch/images/containers.conf for hosts where podman's own limits or
# its runtime are refused (no CAP_SYS_RESOURCE, cgroups v1): export CONTAINERS_CONF with its path there.
set -euo pipefail
cd "$(dirname "$0")/../.."
tag=${1:-localhost/forgewatch-base:bookworm}
mkdir -p .forgewatch/images
cat > .forgewatch/images/containers.conf <<'CONF'
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
CONF
export CONTAINERS_CONF=${CONTAINERS_CONF:-$PWD/.forgewatch/images/containers.conf}
# The machine's own package sources and keys are used for the download, and do not get into the image.
sources=/etc/apt/sources.list.d/debian.sources
[ -s "$sources" ] || sources=/etc/apt/sources.list
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# A merged /usr from the start spares the base perl, which merges it later.
mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3,python3-venv,usr-is-merged \
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='rm -rf "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*' \
    bookworm "$folder/base.tar" "$sources"
podman import --quiet "$folder/base.tar" "$tag"

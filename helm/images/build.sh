#!/usr/bin/env bash
# Builds images: build.sh [TARGET…], by default worker, torchserve and updater, as forgewatch/TARGET:TAG.
# TAG: by default the version. GPU: where it is set, images for NVIDIA's GPUs, as forgewatch/TARGET-gpu:TAG.
# BASE: the base image; INDEX: an index with torch for the CPU, for the updater; PIP_CONFIG_FILE, PIP_CERT: as pip
# reads them, for the time of the build; BUILDER: podman or docker. Each bill of materials is copied to
# .forgewatch/images/TARGET.cdx.json.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p .forgewatch/images
builder=${BUILDER:-$(command -v podman || command -v docker)}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
tag=${TAG:-$version}
options=(--file helm/images/Dockerfile --build-arg "VERSION=$version"
    --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)")
[ -z "${BASE:-}" ] || options+=(--build-arg "BASE=$BASE")
[ -z "${INDEX:-}" ] || options+=(--build-arg "TORCH_INDEX=$INDEX")
[ -z "${PIP_CONFIG_FILE:-}" ] || options+=(--secret "id=pip,src=$PIP_CONFIG_FILE")
[ -z "${PIP_CERT:-}" ] || options+=(--secret "id=ca,src=$PIP_CERT")
# Without this format podman leaves HEALTHCHECK out.
[ "$(basename "$builder")" != podman ] || options+=(--format docker)
[ $# -gt 0 ] || set -- worker torchserve updater
suffix=${GPU:+-gpu}
options+=(--build-arg "GPU=$suffix")
for target; do
    image=$target$suffix
    "$builder" build "${options[@]}" --target "$target" --tag "forgewatch/$image:$tag" .
    "$builder" run --rm --network=none "forgewatch/$image:$tag" cat /opt/venv/share/forgewatch/sbom.cdx.json \
        > ".forgewatch/images/$image.cdx.json"
done

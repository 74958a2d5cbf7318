#!/usr/bin/env bash
# A release 0 for the cluster, made once by the public commands: release_zero.sh DIR PYTHON_BIN
# DIR/DIGEST/ is then its artifact. A local stack trains it (minutes) and is stopped again.
set -euo pipefail
root=$(realpath "$(dirname "$0")/../..") dir=$(realpath -m "$1") python_bin=$(realpath "$2")
# What an artifact and its evaluation look like; of another look, it is made anew.
look=$(cat "$root"/detector/release/{artifact,manifest,contract}.py "$root"/updater/records.py | sha256sum | cut -c1-12)
[ "$(cat "$dir/look" 2>/dev/null)" = "$look" ] && exit 0
home=$(mktemp -d)
trap '(cd "$home" && "$python_bin/forgewatch" down > /dev/null); rm -rf "$home"' EXIT
mkdir -p "$home/.forgewatch" "$root/.forgewatch/cache"
ln -s "$root/.forgewatch/cache" "$home/.forgewatch/cache"
cd "$home"
unset FORGEWATCH_IMAGE_TAG FORGEWATCH_REPORT FORGEWATCH_CLUSTER # the test's; Forgewatch refuses what is no setting
"$python_bin/forgewatch" up
rm -rf "$dir"
mkdir -p "$dir"
cp -r .forgewatch/run/deploy/artifacts/[0-9a-f]* "$dir/"
echo "$look" > "$dir/look"

#!/usr/bin/env bash
# What the tests of the page's accessibility need: tools.sh DIR puts axe-core (MPL-2.0) from npm into DIR/axe.min.js.
set -euo pipefail
dir=$(realpath -m "$1") version=4.14.1
[ ! -e "$dir/axe.min.js" ] || exit 0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
npm install --silent --no-audit --no-fund --ignore-scripts "axe-core@$version"
mkdir -p "$dir"
mv node_modules/axe-core/axe.min.js "$dir/"

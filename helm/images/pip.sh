#!/bin/sh
# pip.sh VENV LOCK [MORE]: installs what a lock names into a virtual environment, each file with its hash; what comes
# new with it is moved to the folder MORE.
# TORCH_INDEX: an index that has torch and torchvision for the CPU; they come from there, by version alone.
set -eu
venv=$1 lock=$2 more=${3:-}
touch /tmp/begun
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
if [ -s /run/ca.pem ]; then export PIP_CERT=/run/ca.pem; fi
pip() { /opt/build/bin/pip --python "$venv/bin/python" "$@"; }

if [ -n "${TORCH_INDEX:-}" ]; then
    for name in torch torchvision; do
        pip install --no-compile --no-deps --only-binary :all: --index-url "$TORCH_INDEX" \
            "$(sed -n "s/^\($name==[^ ;]*\).*/\1/p" "$lock")"
    done
    # What remains: neither these two nor what only the CUDA build needs.
    sed '/^nvidia-ml-py==/b; /^\(torch\|torchvision\|triton\|cuda-[a-z]*\|nvidia-[a-z0-9-]*\)==/,/[^\\]$/d' \
        "$lock" > /tmp/without-cuda.lock
    lock=/tmp/without-cuda.lock
fi
pip install --no-compile --no-deps --only-binary :all: --require-hashes -r "$lock"

site=$(echo "$venv"/lib/python3*/site-packages)
"$(dirname "$0")/prune.sh" "$site"
# Of large packages only what is imported is compiled: load.py does it. Some carry files of other Pythons, which fail.
"$venv/bin/python" -m compileall -qq -x '/site-packages/(numpy|scipy|sklearn|narwhals|onnxruntime|pygments)/' "$site" || true

if [ -n "$more" ]; then
    mkdir -p "$more"
    cd "$venv"
    find . -cnewer /tmp/begun ! -type d -print0 | tar --null -T - --remove-files -cf - | tar -C "$more" -xf -
fi

#!/bin/sh
# pip.sh VENV LOCK: installs what a lock names into a virtual environment, each file with its hash.
# TORCH_INDEX: an index that has torch and torchvision for the CPU; they come from there, by version alone.
set -eu
venv=$1 lock=$2
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
if [ -s /run/ca.pem ]; then export PIP_CERT=/run/ca.pem; fi
pip() { /opt/build/bin/pip --python "$venv/bin/python" "$@"; }

if [ -n "${TORCH_INDEX:-}" ]; then
    for name in torch torchvision; do
        pip install --no-deps --only-binary :all: --index-url "$TORCH_INDEX" \
            "$(sed -n "s/^\($name==[^ ;]*\).*/\1/p" "$lock")"
    done
    # What remains: neither these two nor what only the CUDA build needs.
    sed '/^nvidia-ml-py==/b; /^\(torch\|torchvision\|triton\|cuda-[a-z]*\|nvidia-[a-z0-9-]*\)==/,/[^\\]$/d' \
        "$lock" > /tmp/without-cuda.lock
    lock=/tmp/without-cuda.lock
fi
pip install --no-deps --only-binary :all: --require-hashes -r "$lock"

# A sixth of what was installed is loaded by no process: the packages' own tests, and ONNX Runtime a second time for
# programs in C (Python's module has it inside).
find "$venv" -depth -type d -name tests -path '*/site-packages/*' -exec rm -r {} +
find "$venv" -path '*/onnxruntime/capi/libonnxruntime.so*' -delete

#!/bin/sh
# prune.sh SITE_PACKAGES: takes out what no process reads, about a sixth of it. A line a kind; tests/helm/images holds
# that what is left works.
set -eu
cd "$1"

# The packages' own tests and what they test with.
find . -depth -type d \( -name tests -o -path ./joblib/test \) -exec rm -r {} +
rm -rf sqlalchemy/testing alembic/testing mako/testing

# What a compiler or a type checker reads.
find . -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.tp' -o -name '*.c' \
    -o -name '*.cpp' -o -name '*.h' -o -name '*.hpp' -o -name '*.a' \) -delete

# The interfaces of 430 of Amazon's services. S3 is left, and those that hand out credentials for it.
if [ -d botocore/data ]; then
    find botocore/data -mindepth 1 -maxdepth 1 -type d ! -name s3 ! -name sts ! -name sso ! -name sso-oidc \
        ! -name signin -exec rm -r {} +
fi

# Tools of ONNX Runtime, and ONNX Runtime a second time for programs in C: Python's module has it inside.
rm -rf onnxruntime/capi/libonnxruntime.so* onnxruntime/tools onnxruntime/transformers onnxruntime/quantization

# Pictures and tables to try scikit-learn with.
rm -rf sklearn/datasets/images sklearn/datasets/data sklearn/datasets/descr

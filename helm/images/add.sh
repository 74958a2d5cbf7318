#!/bin/sh
# Adds to the worker's virtual environment what the one at /mnt/venv has more, so that the layer has this alone.
set -eu
tar -C /mnt/venv -cf - . | tar -C /opt/venv --skip-old-files -xf -
/mnt/images/sbom.sh

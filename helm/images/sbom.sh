#!/bin/sh
# Writes what lies in the virtual environment, with versions and licences, as CycloneDX into the image.
set -eu
mkdir -p /opt/venv/share/forgewatch
/opt/build/bin/cyclonedx-py environment --output-reproducible --output-format JSON \
    --output-file /opt/venv/share/forgewatch/sbom.cdx.json /opt/venv/bin/python

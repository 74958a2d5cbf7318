#!/bin/sh
# Writes what lies in the virtual environment, and in /opt/more if that is there, with versions and licences, as CycloneDX
# into the image.
set -eu
mkdir -p /opt/venv/share/forgewatch
for more in /opt/more/lib/python3*/site-packages; do
    [ ! -d "$more" ] || echo "$more" > "$(echo /opt/venv/lib/python3*/site-packages)/more.pth"
done
/opt/build/bin/cyclonedx-py environment --output-reproducible --output-format JSON \
    --output-file /opt/venv/share/forgewatch/sbom.cdx.json /opt/venv/bin/python

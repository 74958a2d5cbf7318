"""Imports every module of Forgewatch that can be, so that Python writes the bytecode of what they load."""

import contextlib
import importlib
import pkgutil

from PIL import Image

for room in ("ingest", "detector", "memory", "updater", "deploy"):
    for module in pkgutil.walk_packages(importlib.import_module(room).__path__, f"{room}."):
        # What is left out needs more than this image has, or is a program.
        if not module.name.endswith(("__main__", ".env")):
            with contextlib.suppress(Exception):
                importlib.import_module(module.name)
Image.init()

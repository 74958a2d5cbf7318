"""`python -m updater.run` with training as short as the families of conftest need; started by test_run.py."""

import dataclasses
import sys

from updater.candidate import builder
from updater.run import main

for name in ("FIRST", "UPDATE"):
    steps = {"backbone_steps": 28, "balanced_steps": 60, "batch": 16}
    setattr(builder, name, dataclasses.replace(getattr(builder, name), **steps))

if __name__ == "__main__":
    sys.exit(main())

"""`python -m updater.run`, started by test_run.py: short, with few items measured."""

import dataclasses
import os
import sys

from updater import runs
from updater.candidate import builder, plan, robustness
from updater.run import main

for name in ("FIRST", "UPDATE"):
    steps = {"backbone_steps": 28, "balanced_steps": int(os.environ.get("BALANCED_STEPS", "60")), "batch": 16}
    setattr(plan, name, dataclasses.replace(getattr(plan, name), **steps))
robustness.MAX_ITEMS, builder.PROOF_ITEMS = 4, 6
runs.MAX_TAKEOVERS = int(os.environ.get("MAX_TAKEOVERS", runs.MAX_TAKEOVERS))

if __name__ == "__main__":
    sys.exit(main())

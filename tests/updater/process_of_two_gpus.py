"""`python -m updater` as it is where torch sees two GPUs, on a host without; started by test_torchrun.py."""

import sys

from updater.__main__ import main
from updater.training import processes

processes.gpus = lambda device: 2

if __name__ == "__main__":
    sys.exit(main())

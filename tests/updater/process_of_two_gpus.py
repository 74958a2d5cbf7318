"""`python -m updater` as it is where torch sees two GPUs, where are none; for test_runner_takeover.py.

Its updates are as short as short_run.py's.
"""

import sys
from pathlib import Path

from updater import torchrun
from updater.__main__ import main
from updater.training import processes

_launcher = torchrun.torchrun

processes.gpus = lambda device: 2
torchrun.torchrun = lambda count: [*_launcher(count)[:-2], str(Path(__file__).with_name("short_run.py"))]

if __name__ == "__main__":
    sys.exit(main())

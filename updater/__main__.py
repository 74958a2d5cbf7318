"""`python -m updater`: run the updater; `--once`: carry out queued updates, or one, and end."""

import argparse
import sys

from ingest.process.frame import Process, run
from memory.settings import MemorySettings
from updater.settings import UpdaterSettings


def main() -> int:
    """Run the process. Returns its exit code; with `--once` 0 for a proposal and 1 for none."""
    parser = argparse.ArgumentParser(prog="python -m updater", description="Trains and proposes candidates.")
    parser.add_argument("--once", action="store_true", help="carry out queued updates, or one, and end")
    once = parser.parse_args().once
    return run("updater", (MemorySettings, UpdaterSettings), _work_once if once else _work)


# What takes long to load is loaded once signals are met.
def _work(process: Process) -> None:
    from updater.process import work

    work(process)


def _work_once(process: Process) -> int:
    from updater.process import work_once

    return work_once(process)


if __name__ == "__main__":
    sys.exit(main())

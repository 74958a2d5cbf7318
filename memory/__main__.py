"""`python -m memory`: the memory worker, until SIGTERM or SIGINT."""

import sys

from ingest.process.frame import Process, run
from ingest.settings import IngestSettings
from memory.settings import MemorySettings


def _work(process: Process) -> None:
    from memory.process import work  # what takes long to load is loaded once signals are met

    work(process)


if __name__ == "__main__":
    sys.exit(run("memory", (IngestSettings, MemorySettings), _work))

"""`python -m detector`: one worker slot, until SIGTERM or SIGINT."""

import sys

from detector.settings import DetectorSettings
from ingest.process.frame import Process, run
from ingest.settings import IngestSettings


def _work(process: Process) -> None:
    from detector.process import work  # what takes long to load is loaded once signals are met

    work(process)


if __name__ == "__main__":
    sys.exit(run("detector", (IngestSettings, DetectorSettings), _work))

"""`python -m deploy`: the deploy server, until SIGTERM or SIGINT."""

import sys

from deploy.environment import SETTINGS
from ingest.process.frame import Process, run


def _work(process: Process) -> None:
    from deploy.process import work  # what takes long to load is loaded once signals are met

    work(process)


if __name__ == "__main__":
    sys.exit(run("deploy", SETTINGS, _work))

"""`python -m updater.run`: carry out the update that is next, and end. The command of a Kubernetes Job's pod.

Exit codes: 0 the update has ended (proposed, with findings or not, refused or failed), or there is none; 1 it
has not, and goes on when this is started again on its work folder; 2 a setting is wrong. Told to stop, it
gives the update back.

Where it sees several GPUs it starts itself once for each, by torchrun. Started by torchrun, the first process
carries the update, and the others take their share of its training: if one of them dies, all of them end.
"""

import os
import sys

from ingest.process.frame import DONE, FAILED, Process, failing_on, run
from memory.settings import MemorySettings
from updater.settings import UpdaterSettings
from updater.torchrun import ON_LOOPBACK, torchrun


def main() -> int:
    """Run the process; returns its exit code."""
    return run("updater", (MemorySettings, UpdaterSettings), _work, stopped=FAILED)


def _work(process: Process) -> int:
    # What takes long to load is loaded once signals are met.
    from updater.candidate.distributed import run_follower, stop_followers
    from updater.process import work_next
    from updater.training import processes

    if processes.process_count() == 1 and (gpus := processes.gpus(UpdaterSettings().device)) > 1:
        os.execve(sys.executable, torchrun(gpus), ON_LOOPBACK | os.environ)  # noqa: S606 - it is ourselves
    with failing_on(processes.PeerLostError):
        if not processes.starts_first():
            process.report_started(waits_for="the first process")
            with failing_on(OSError):
                run_follower()
            return DONE
        try:
            return work_next(process)
        finally:
            stop_followers()


if __name__ == "__main__":
    sys.exit(main())

"""supervisord's event listener: a process that ended because of a wrong setting is not started again.

supervisord itself looks at the exit status only of a process that ran for a while, and a wrong setting
ends one at once. Its protocol: https://supervisord.org/events.html
"""

import os
import sys
from pathlib import Path

from supervisor import childutils

from deploy.local.restarts import WRONG_SETTING, exits


def main(activity_log: Path) -> None:
    """Answer events of PROCESS_STATE_BACKOFF until supervisord is gone."""
    supervisor = childutils.getRPCInterface(os.environ).supervisor
    while True:
        try:
            _, payload = childutils.listener.wait(sys.stdin, sys.stdout)
        except KeyError:
            return  # the header of no event: supervisord closed its end
        name = childutils.get_headers(payload)["processname"]
        whys = [end.why for end in exits(activity_log.read_text()) if end.name == name]
        if whys and whys[-1] == WRONG_SETTING:
            supervisor.stopProcess(name)
        childutils.listener.ok(sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

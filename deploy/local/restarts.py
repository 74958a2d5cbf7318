"""Which processes ended and why, by supervisord's activity log; a wrong setting is not tried again.

As a program this is supervisord's event listener. supervisord itself looks at the exit status only of a
process that ran for a while, and a wrong setting ends one at once. Its protocol:
https://supervisord.org/events.html
"""

import os
import re
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

ACTIVITY_LOG = "supervisord.log"
"""The name of the activity log, in the folder of the stack's supervisord."""

WRONG_SETTING = "exit status 2"
"""How a process of ours ends that cannot work with its settings: to start it again would change nothing."""

_BEGIN = "supervisord started with pid"
_EXIT = re.compile(
    r"^(?P<at>\S+ \S+),\d+ \w+ exited: (?P<name>\S+) \((?P<why>.+); (?:not )?expected\)$", re.MULTILINE
)


@dataclass(frozen=True)
class Exit:
    """A process ended without being told to: `why` is "exit status N" or "terminated by SIGNAL"."""

    name: str
    at: datetime
    why: str


def exits(activity: str) -> list[Exit]:
    """Every end of a process since the newest start of supervisord, the oldest first."""
    _, _, since = activity.rpartition(_BEGIN)
    return [
        Exit(found["name"], datetime.strptime(found["at"], "%Y-%m-%d %H:%M:%S").astimezone(), found["why"])
        for found in _EXIT.finditer(since)
    ]


def main(activity_log: Path) -> None:
    """Answer events of PROCESS_STATE_BACKOFF until supervisord is gone."""
    from supervisor import childutils  # on a host with a stack alone; its name is asked for elsewhere too

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

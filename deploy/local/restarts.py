"""Which processes ended and why, by supervisord's activity log; its event listener imports this too."""

import re
from dataclasses import dataclass
from datetime import datetime

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

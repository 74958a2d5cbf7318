"""Diagnosis of a stack, one check at a time, with a remedy for each problem."""

import os
from collections.abc import Callable

from pydantic import BaseModel

from deploy.doctor import host, rollout, stack
from deploy.doctor.host import CheckError, NotHereError
from deploy.environment import SETTINGS
from ingest.process.frame import UNREADABLE, explain

CHECKS: dict[str, Callable[[], str]] = {
    "settings": host.settings,
    "dependencies": host.dependencies,
    "disk": host.disk,
    "databases": host.databases,
    "files": host.files,
    "broker": stack.broker,
    "topics": stack.topics,
    "deploy server": stack.server,
    "clock": host.clock,
    "ledger": rollout.ledger,
    "artifacts": rollout.artifacts,
    "signatures": host.signatures,
    "releases topic": rollout.topic,
    "TorchServe": stack.torchserve,
    "processes": stack.processes,
    "supervisor": stack.check_processes,
    "served release": rollout.check_served,
    "lag": stack.lag,
    "alerts": stack.alerts,
}
"""By name, what is looked at; each returns what it found or raises CheckError."""


_DEPLOY, _KAFKA = ("FORGEWATCH_DEPLOY_URL",), ("FORGEWATCH_INGEST_BOOTSTRAP_SERVERS",)
_HEALTH, _ARTIFACTS = ("FORGEWATCH_DEPLOY_HEALTH_URLS",), "FORGEWATCH_DEPLOY_ARTIFACTS_URL"
_ADDRESSES: dict[str, tuple[str, ...]] = {
    "disk": (_ARTIFACTS,),
    "databases": host.DATABASES,
    "files": (_ARTIFACTS, "FORGEWATCH_MEMORY_CROPS_URL"),
    "TorchServe": ("FORGEWATCH_DETECTOR_TORCHSERVE_URL",),
    **dict.fromkeys(("broker", "topics", "releases topic"), _KAFKA),
    **dict.fromkeys(("processes", "served release"), _HEALTH),
    **dict.fromkeys(("deploy server", "clock", "ledger", "artifacts", "lag"), _DEPLOY),
}
"""Which variables say where that lies which a check looks at."""


class Finding(BaseModel):
    """What one check found; advice is empty where all is well. here: whether it had anything to look at."""

    check: str
    ok: bool
    found: str
    advice: str = ""
    here: bool = True

    @property
    def verdict(self) -> str:
        """The result in a word or two."""
        return ("ok" if self.ok else "WRONG") if self.here else "not here"


def examine(name: str) -> Finding:
    """Run one of CHECKS. It never raises: it is made for a stack that is half down."""
    try:
        return Finding(check=name, ok=True, found=CHECKS[name]())
    except NotHereError as why:
        return Finding(check=name, ok=True, found=str(why), here=False)
    except CheckError as wrong:
        if address := _unset(name):
            return Finding(check=name, ok=True, found=f"{address} is not set", here=False)
        return Finding(check=name, ok=False, found=str(wrong), advice=wrong.advice)
    except UNREADABLE as error:
        problem = "; ".join(map(str, explain(error, SETTINGS)))
        return Finding(check=name, ok=False, found=problem, advice="set these variables right")


def _unset(check: str) -> str | None:
    """The variable that would say where the check is to look, where others say it of theirs; else None.

    Without any of them there is one stack, whose addresses are the defaults.
    """
    mine = _ADDRESSES.get(check, ())
    known = {name for names in _ADDRESSES.values() for name in names}
    return mine[0] if mine and os.environ.keys().isdisjoint(mine) and known & os.environ.keys() else None

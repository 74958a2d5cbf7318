"""What is wrong with a stack and what to do about it, one check at a time."""

from collections.abc import Callable

from pydantic import BaseModel

from deploy.doctor import host, rollout, stack
from deploy.doctor.host import CheckError
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
    "kept alive": stack.kept,
    "served release": rollout.served,
    "lag": stack.lag,
    "alerts": stack.alerts,
}
"""By name, what is looked at; each returns what it found or raises CheckError."""


class Finding(BaseModel):
    """What one check found; advice is empty where all is well."""

    check: str
    ok: bool
    found: str
    advice: str = ""


def examine(name: str) -> Finding:
    """Run one of CHECKS. It never raises: a stack that is half down is what it is for."""
    try:
        return Finding(check=name, ok=True, found=CHECKS[name]())
    except CheckError as wrong:
        return Finding(check=name, ok=False, found=str(wrong), advice=wrong.advice)
    except UNREADABLE as error:
        found = "; ".join(map(str, explain(error, SETTINGS)))
        return Finding(check=name, ok=False, found=found, advice="set these variables right")

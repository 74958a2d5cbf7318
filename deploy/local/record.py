"""The record of a running stack, by which later commands use it and end it."""

import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ValidationError
from rich.console import Console

from deploy.environment import TOKEN
from deploy.local.processes import Daemon, StackError, free_port, port_is_free
from deploy.local.supervisor import ProcessStatus, Supervisor
from ingest.durable import write_durably

_DECODERS = 4


@dataclass(frozen=True)
class Ports:
    """The loopback TCP ports of a stack; the defaults are those of the settings."""

    broker: int = 9092
    controller: int = 9093
    torchserve: int = 8080
    deploy: int = 8700
    detector_metrics: int = 9101
    memory_metrics: int = 9102
    updater_metrics: int = 9103
    deploy_metrics: int = 9104
    prometheus: int = 9090


def free_ports() -> Ports:
    """Ports that no one listens on, all different."""
    taken: set[int] = set()
    for _ in asdict(Ports()):
        port = free_port()
        while port in taken:
            port = free_port()
        taken.add(port)
    return Ports(*taken)


def usable_ports(wanted: Ports, console: Console) -> Ports:
    """The wanted ports, a free one in place of each that another process has taken, which it says."""
    spare = asdict(free_ports())
    taken = {name: port for name, port in asdict(wanted).items() if not port_is_free(port)}
    for name, port in taken.items():
        part = name.replace("_", " ")
        console.print(f"Port {port} ({part}) is taken by another process: {spare[name]} instead.")
    return replace(wanted, **{name: spare[name] for name in taken})


def stack_settings(
    run: Path, ports: Ports, management: str, model_store: Path, tuning: Mapping[str, str]
) -> dict[str, str]:
    """The FORGEWATCH_… variables of a stack with its state below `run`.

    Variables of this process's environment that a person set to tune a part are kept, those of `tuning`
    go before them; where the parts listen, how they reach one another and where their state lies is the
    stack's own. `management` and `model_store` are TorchServe's.
    """
    metrics = {room: getattr(ports, f"{room}_metrics") for room in ("detector", "memory", "updater")}
    health = ", ".join(f'"{name}": "http://127.0.0.1:{port}/metrics"' for name, port in metrics.items())
    url = f"http://127.0.0.1:{ports.deploy}"
    own = {
        "FORGEWATCH_INGEST_BOOTSTRAP_SERVERS": f"127.0.0.1:{ports.broker}",
        "FORGEWATCH_INGEST_SECURITY_PROTOCOL": "PLAINTEXT",
        "FORGEWATCH_DETECTOR_TORCHSERVE_URL": f"http://127.0.0.1:{ports.torchserve}",
        "FORGEWATCH_DETECTOR_TORCHSERVE_MANAGEMENT_URL": management,
        "FORGEWATCH_DETECTOR_MODEL_STORE_DIR": str(model_store),
        "FORGEWATCH_DETECTOR_DEPLOY_URL": url,
        "FORGEWATCH_DETECTOR_METRICS_PORT": str(ports.detector_metrics),
        "FORGEWATCH_MEMORY_DATABASE_URL": f"sqlite:///{run}/memory/memory.sqlite",
        "FORGEWATCH_MEMORY_CROPS_URL": f"{run}/memory/crops",
        "FORGEWATCH_MEMORY_INDEX_PATH": f"{run}/memory/index",
        "FORGEWATCH_MEMORY_METRICS_PORT": str(ports.memory_metrics),
        "FORGEWATCH_UPDATER_DATABASE_URL": f"sqlite:///{run}/updater/updater.sqlite",
        "FORGEWATCH_UPDATER_WORK_DIR": f"{run}/updater/work",
        "FORGEWATCH_UPDATER_DEPLOY_URL": url,
        "FORGEWATCH_UPDATER_METRICS_PORT": str(ports.updater_metrics),
        "FORGEWATCH_DEPLOY_URL": url,
        "FORGEWATCH_DEPLOY_HOST": "127.0.0.1",
        "FORGEWATCH_DEPLOY_PORT": str(ports.deploy),
        "FORGEWATCH_DEPLOY_METRICS_PORT": str(ports.deploy_metrics),
        "FORGEWATCH_DEPLOY_DATABASE_URL": f"sqlite:///{run}/deploy/deploy.sqlite",
        "FORGEWATCH_DEPLOY_ARTIFACTS_URL": f"{run}/deploy/artifacts",
        "FORGEWATCH_DEPLOY_CACHE_DIR": f"{run}/deploy/cache",
        "FORGEWATCH_DEPLOY_HEALTH_URLS": f"{{{health}}}",
    }
    for room in ("DETECTOR", "UPDATER"):
        token = secrets.token_urlsafe(32)
        own |= {f"FORGEWATCH_DEPLOY_{room}_TOKEN": token, f"FORGEWATCH_{room}_DEPLOY_TOKEN": token}
    kept = _tuning(os.environ)
    defaults = {
        "FORGEWATCH_INGEST_CLAIM_CHECK_DIR": f"{run}/media",
        # Decoding and looking for faces is what large photographs wait for; a stack has its one worker.
        "FORGEWATCH_INGEST_DECODE_PROCESSES": str(min(_DECODERS, len(os.sched_getaffinity(0)))),
    }
    return {**defaults, **kept, **tuning, **own}


def _tuning(environment: Mapping[str, str]) -> dict[str, str]:
    # Another broker's credentials are no business of this one, and people bring their tokens themselves.
    foreign = ("FORGEWATCH_INGEST_SASL_", "FORGEWATCH_INGEST_SSL_", TOKEN)
    return {
        name: value
        for name, value in environment.items()
        if name.startswith("FORGEWATCH_") and not name.startswith(foreign)
    }


HOME = Path(".forgewatch")
"""Where a stack lies, from the folder that its commands are given in."""


class StackRecord(BaseModel, frozen=True):
    """A stack's supervisord: its id and start time (seconds since the epoch) together name it for ever.

    Every process of the stack belongs to its session, so that this also finds those that outlived it.
    """

    format: Literal[2] = 2
    pid: int
    created_s: float
    log: Path
    folder: Path
    sockets: Path

    @classmethod
    def of(cls, process: Daemon, folder: Path, sockets: Path) -> Self:
        """The record of a supervisord with its settings in `folder` and its socket in `sockets`."""
        of = {"pid": process.pid, "created_s": process.created_s, "log": process.log}
        return cls.model_validate({**of, "folder": folder, "sockets": sockets})

    def supervisor(self) -> Supervisor:
        """The supervisord, which may have ended."""
        daemon = Daemon("supervisord", self.pid, self.created_s, self.log)
        return Supervisor(daemon, self.folder, self.sockets)


def write_record(path: Path, record: StackRecord) -> None:
    """Write a record, whole or not at all, for this user's eyes only."""
    write_durably(path, record.model_dump_json(indent=1).encode() + b"\n")


def read_record(path: Path) -> StackRecord | None:
    """The record at `path`, None where there is none; raises StackError where it cannot be understood."""
    try:
        return StackRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        problem = f"{path} does not list the processes here: end them yourself and remove it\n{error}"
        raise StackError(problem) from error


def kept_alive(home: Path = HOME) -> list[ProcessStatus]:
    """The processes of the stack in `home`; none where none was started. Raises processes.StackError."""
    record = read_record(home / "stack.json")
    return [] if record is None else record.supervisor().states()


def write_environment(path: Path, settings: Mapping[str, str]) -> None:
    """Write settings as sorted KEY=VALUE lines, whole or not at all, for this user's eyes only."""
    text = "".join(f"{name}={value}\n" for name, value in sorted(settings.items()))
    write_durably(path, text.encode())

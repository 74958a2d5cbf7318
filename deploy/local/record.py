"""What is written about a running stack, so that whoever comes later can use it and end it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from deploy.local.processes import Child, StackError
from deploy.local.supervisor import Kept, Supervisor
from ingest.durable import write_durably

HOME = Path(".forgewatch")
"""Where a stack lies, from the folder that its commands are given in."""


class StackRecord(BaseModel):
    """A stack's supervisord: its id and start time (seconds since the epoch) together name it for ever.

    Every process of the stack belongs to its session, so that this also finds those that outlived it.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[2] = 2
    pid: int
    created_s: float
    log: Path
    folder: Path
    sockets: Path

    @classmethod
    def of(cls, process: Child, folder: Path, sockets: Path) -> Self:
        """The record of a supervisord with its settings in `folder` and its socket in `sockets`."""
        return cls(
            pid=process.pid, created_s=process.created_s, log=process.log, folder=folder, sockets=sockets
        )

    def supervisor(self) -> Supervisor:
        """The supervisord, which may have ended."""
        return Supervisor(Child("supervisord", self.pid, self.created_s, self.log), self.folder, self.sockets)


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
        raise StackError(
            f"{path} does not tell what runs here: end those processes yourself and remove it\n{error}"
        ) from error


def kept_alive(home: Path = HOME) -> list[Kept]:
    """The processes of the stack in `home`; none where none was started. Raises processes.StackError."""
    record = read_record(home / "stack.json")
    return [] if record is None else record.supervisor().kept()


def write_environment(path: Path, settings: Mapping[str, str]) -> None:
    """Write settings as sorted KEY=VALUE lines, whole or not at all, for this user's eyes only."""
    text = "".join(f"{name}={value}\n" for name, value in sorted(settings.items()))
    write_durably(path, text.encode())


def read_environment(path: Path) -> dict[str, str]:
    """The settings that write_environment wrote. Raises OSError."""
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)

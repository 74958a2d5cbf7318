"""What is written about a running stack, so that whoever comes later can use it and end it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from deploy.local.processes import Child, StackError


class ChildRecord(BaseModel):
    """One process: its id and start time (seconds since the epoch) together name it for ever."""

    model_config = ConfigDict(frozen=True)

    name: str
    pid: int
    created_s: float
    log: Path

    @classmethod
    def of(cls, child: Child) -> Self:
        """The record of a running process."""
        return cls(name=child.name, pid=child.pid, created_s=child.created_s, log=child.log)

    def child(self) -> Child:
        """The process as processes.alive and processes.stop take it."""
        return Child(self.name, self.pid, self.created_s, self.log)


class StackRecord(BaseModel):
    """The processes of a stack in the order of their start, and the folder of TorchServe's sockets."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    children: tuple[ChildRecord, ...] = ()
    sockets: Path | None = None


def write_record(path: Path, record: StackRecord) -> None:
    """Write a record, whole or not at all, for this user's eyes only."""
    _write(path, record.model_dump_json(indent=1) + "\n")


def read_record(path: Path) -> StackRecord | None:
    """The record at `path`, None where there is none; raises StackError where it cannot be understood."""
    try:
        return StackRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise StackError(
            f"{path} does not tell what runs here: end those processes yourself\n{error}"
        ) from error


def write_environment(path: Path, settings: Mapping[str, str]) -> None:
    """Write settings as sorted KEY=VALUE lines, whole or not at all, for this user's eyes only."""
    _write(path, "".join(f"{name}={value}\n" for name, value in sorted(settings.items())))


def _write(path: Path, text: str) -> None:
    aside = path.with_name(f"{path.name}.new")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    aside.replace(path)

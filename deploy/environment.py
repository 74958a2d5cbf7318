"""Settings around the command line: defaults from a running stack's file, and plain complaints."""

import errno
import os
from pathlib import Path

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsError

from deploy.settings import DeploySettings
from detector.settings import DetectorSettings
from ingest.settings import IngestSettings
from memory.settings import MemorySettings
from updater.settings import UpdaterSettings

STACK_ENVIRONMENT = Path(".forgewatch/stack.env")
"""What `forgewatch up` writes: KEY=VALUE lines of the stack that it started here."""


def load_stack_environment(path: Path = STACK_ENVIRONMENT) -> None:
    """Take FORGEWATCH_… defaults from a KEY=VALUE file, if it is there; what is set already wins.

    Raises OSError where the file cannot be read.
    """
    if not path.is_file():
        return
    try:
        text = path.read_text()
    except UnicodeDecodeError as error:
        raise OSError(errno.EINVAL, "no settings of a stack; remove it", str(path)) from error
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and key.startswith("FORGEWATCH_"):
            os.environ.setdefault(key, value)


def check_settings() -> None:
    """Read every room's settings. Raises one of SettingsWrong."""
    for room in _ROOMS.values():
        room()


SettingsWrong = (ValidationError, SettingsError)
"""What building a settings class raises: a value that does not fit, or JSON that is none."""


def settings_problems(error: Exception) -> list[str]:
    """One line for each wrong setting of a SettingsWrong, by the name of its environment variable."""
    if not isinstance(error, ValidationError):
        field = str(error).split('"')[1]
        (prefix,) = {
            str(room.model_config["env_prefix"]) for room in _ROOMS.values() if field in room.model_fields
        }
        return [f"{prefix}{field.upper()}: not the JSON that it must be"]
    prefix = str(_ROOMS[error.title].model_config["env_prefix"])
    problems = []
    for problem in error.errors(include_url=False, include_input=False):
        name = "_".join(str(part) for part in problem["loc"]).upper()
        problems.append(f"{prefix}{name or '…'}: {problem['msg']}")
    return problems


_ROOMS: dict[str, type[BaseSettings]] = {
    room.__name__: room
    for room in (IngestSettings, DetectorSettings, MemorySettings, UpdaterSettings, DeploySettings)
}

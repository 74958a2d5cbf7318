"""Every room's settings, and their defaults from the file of a stack that runs here."""

import errno
import os
from pathlib import Path

from pydantic_settings import BaseSettings

from deploy.settings import DeploySettings
from detector.settings import DetectorSettings
from ingest.settings import IngestSettings
from memory.settings import MemorySettings
from updater.settings import UpdaterSettings

SETTINGS: tuple[type[BaseSettings], ...] = (
    IngestSettings,
    DetectorSettings,
    MemorySettings,
    UpdaterSettings,
    DeploySettings,
)

TOKEN = "FORGEWATCH_DEPLOY_TOKEN"  # noqa: S105 - its name
"""The token of a person who gives commands, which no file of a stack is to lend to another."""

STACK_ENVIRONMENT = Path(".forgewatch/stack.env")
"""What `forgewatch up` writes: KEY=VALUE lines of the stack that it started here."""


def load_stack_environment(path: Path = STACK_ENVIRONMENT) -> None:
    """Take FORGEWATCH_… defaults from a KEY=VALUE file, if it is there; variables that are set already win.

    Raises OSError where the file cannot be read.
    """
    if not path.is_file():
        return
    for name, value in read_environment(path).items():
        if name.startswith("FORGEWATCH_") and name != TOKEN:
            os.environ.setdefault(name, value)


def read_environment(path: Path) -> dict[str, str]:
    """The settings of a file of KEY=VALUE lines. Raises OSError."""
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise OSError(errno.EINVAL, "no settings of a stack; remove it", str(path)) from error
    return dict(line.strip().split("=", 1) for line in lines if "=" in line)


def check_settings() -> None:
    """Read every room's settings. Raises one of ingest.process.frame.UNREADABLE."""
    for room in SETTINGS:
        room()

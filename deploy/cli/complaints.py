"""How errors that a command does not handle are told. It knows every room's, so it is imported only then."""

from collections.abc import Sequence

import typer
from kafka.errors import KafkaError

from deploy.cli.output import CommandError, UsageError
from deploy.client.connection import ClientError
from deploy.client.kafka import StreamError
from deploy.environment import SETTINGS
from deploy.layouts import DatabaseLayoutError
from deploy.local.processes import StackError
from ingest.kafka.sink import SinkError
from ingest.kafka.topics import TopicError
from ingest.process.frame import ROOMS, UNREADABLE, explain
from memory.store import ExemplarMemoryError

_FAILURES = (
    *(CommandError, ClientError, StreamError, TopicError, SinkError),
    *(ExemplarMemoryError, KafkaError, DatabaseLayoutError),
)


def format_error(error: Exception) -> tuple[int, Sequence[str], Sequence[str]] | None:
    """The exit code, the lines that say what is wrong, and those before them; None for a fault of our own.

    The code is 2 for a wrong command or setting and 1 for what cannot be done.
    """
    match error:
        case typer.TyperException():
            # A group without a command has printed its help, and has no message.
            return 2, [f"{line} (see forgewatch --help)" for line in [error.format_message()] if line], []
        case ValueError() if isinstance(error, UNREADABLE):
            return 2, [*map(str, explain(error, SETTINGS))], []
        case UsageError():
            return 2, [str(error)], []
        case StackError():
            # The end of a log, before the line that says what went wrong.
            first, *log = str(error).splitlines()
            return 1, [first], log
        case _ if isinstance(error, _FAILURES):
            return 1, [str(error)], []
        case ModuleNotFoundError() if error.name and error.name.partition(".")[0].upper() not in ROOMS:
            lacking = f"{error.name}, which is not installed here"
            return 1, [f"this command needs {lacking}; Forgewatch's extra `local` has all of it"], []
        case OSError():
            return 1, [f"{error.filename}: {error.strerror}" if error.filename else str(error)], []
    return None

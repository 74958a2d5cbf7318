"""`python -m updater`: run the updater; `--once`: work off what is queued, or one update, and end."""

import argparse
import sys

import structlog
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from memory.migrate import UnknownLayoutError
from memory.settings import MemorySettings
from memory.store import ExemplarMemoryError
from updater.settings import UpdaterSettings
from updater.worker import run_once, serve


def main() -> int:
    """Return 0 for a clean end (with --once: a proposal), 1 for no proposal, 2 for a wrong setting."""
    parser = argparse.ArgumentParser(prog="python -m updater", description="Trains and proposes candidates.")
    parser.add_argument("--once", action="store_true", help="work off what is queued, or one update, and end")
    once = parser.parse_args().once
    # What a run ends as goes to the standard output, and nothing else.
    structlog.configure(
        # The default renderer prints every local variable of a traceback: settings, and so passwords.
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        settings, memory = UpdaterSettings(), MemorySettings()
        if not once:
            serve(settings, memory)
            return 0
        run = run_once(settings, memory)
    except ValidationError as error:
        for problem in error.errors():
            where = ".".join(str(part).upper() for part in problem["loc"])
            print(f"updater: setting {where}: {problem['msg']}", file=sys.stderr)  # noqa: T201
        return 2
    except (ExemplarMemoryError, UnknownLayoutError, SQLAlchemyError, OSError, ImportError) as error:
        print(f"updater: {str(error).splitlines()[0]}", file=sys.stderr)  # noqa: T201
        return 2
    if run is None:
        print("updater: another runner holds the update that runs now", file=sys.stderr)  # noqa: T201
        return 1
    print(run.model_dump_json(indent=1))  # noqa: T201
    return 0 if run.state == "proposed" else 1


if __name__ == "__main__":
    sys.exit(main())

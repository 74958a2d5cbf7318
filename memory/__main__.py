"""`python -m memory`: run the memory worker until SIGTERM or SIGINT."""

import signal
import sys
from threading import Event

import structlog
from pydantic import ValidationError

from ingest.access import BrokerRefusedError, require_entry
from ingest.settings import IngestSettings, kafka_options
from ingest.sink import SinkError
from memory import metrics
from memory.settings import MemorySettings
from memory.store import ExemplarMemoryError, Store


def main() -> int:
    """Return 0 after a signal, 2 for a wrong setting or something that no retry would mend."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        ingest, settings = IngestSettings(), MemorySettings()
        store = Store(settings.database_url)
        # Not above: it imports torch by way of the detector, and a wrong setting should be said at once.
        from memory.worker import run

        server, thread = metrics.serve(settings, store)
        try:
            require_entry(kafka_options(ingest), ingest.request_timeout_s)
            run(ingest, settings, stop)
        finally:
            server.shutdown()
            thread.join()
    except ValidationError as error:
        for problem in error.errors():
            where = ".".join(str(part).upper() for part in problem["loc"])
            print(f"memory: setting {where}: {problem['msg']}", file=sys.stderr)  # noqa: T201
        return 2
    except (ExemplarMemoryError, SinkError, BrokerRefusedError, OSError) as error:
        print(f"memory: {str(error).splitlines()[0]}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

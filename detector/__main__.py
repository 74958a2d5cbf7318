"""`python -m detector`: one worker slot, until SIGTERM or SIGINT."""

import signal
import sys
import threading
from contextlib import ExitStack, closing

import structlog
from kafka.errors import KafkaError
from prometheus_client import start_http_server
from pydantic import ValidationError

from detector.holdings import Holdings
from detector.loading import Loader
from detector.releases import ReleaseFollower
from detector.rollout import Serving
from detector.settings import DetectorSettings
from detector.torchserve import TorchServe
from detector.wanted import Wanted
from detector.worker import Worker
from ingest.access import require_entry
from ingest.sandbox import Sandbox, SandboxUnavailableError
from ingest.settings import IngestSettings, kafka_options
from ingest.sink import CommitError, SinkRefusedError, TransactionalSink
from ingest.source import Source

log = structlog.get_logger()


def main() -> int:
    """Run the worker. Returns the exit code: 0 told to stop, 1 cannot start or go on, 2 a wrong setting."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        ingest, settings = IngestSettings(), DetectorSettings()
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(map(str, problem["loc"])).upper()
            print(f"{error.title}: {name}: {problem['msg']}", file=sys.stderr)  # noqa: T201 - for the person who started it
        return 2
    with ExitStack() as parts:
        try:
            start_http_server(settings.metrics_port, settings.metrics_host)
            require_entry(kafka_options(ingest), ingest.request_timeout_s)
            torchserve = parts.enter_context(TorchServe(settings))
            follower = parts.enter_context(ReleaseFollower(ingest, settings.releases_topic))
            holdings = parts.enter_context(closing(Holdings(settings.model_store_dir)))
            wanted = Wanted(settings)
            loader = Loader(settings, torchserve, holdings, wanted)
            serving = parts.enter_context(Serving(settings, loader, follower, wanted))
            sandbox = parts.enter_context(Sandbox(ingest))
            sink = parts.enter_context(TransactionalSink(ingest, settings.transactional_id))
            source = parts.enter_context(Source(ingest, settings.group_id))
        except (KafkaError, CommitError, SinkRefusedError, SandboxUnavailableError, OSError) as error:
            print(f"the detector cannot start: {error}", file=sys.stderr)  # noqa: T201 - as above
            return 1
        log.info("detector ready", group=settings.group_id, transactional_id=settings.transactional_id)
        try:
            Worker(source, sandbox, torchserve, serving, sink, ingest, settings, stop).run()
        except (KafkaError, SinkRefusedError) as error:
            print(f"the detector cannot go on: {error}", file=sys.stderr)  # noqa: T201 - as above
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

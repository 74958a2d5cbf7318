"""The detector's process: the parts of one worker slot, opened in order, and the worker's loop."""

import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

from kafka.errors import KafkaError
from prometheus_client import REGISTRY

from detector import metrics
from detector.retraction import Retracting
from detector.serving.loading import Holdings, Loader
from detector.serving.rollout import Serving
from detector.serving.rollout_source import ReleaseFollower, RolloutClient
from detector.serving.torchserve import TorchServe, TorchServeError
from detector.settings import DetectorSettings
from detector.worker import Worker
from ingest.kafka.access import REQUEST_TIMEOUT_S, kafka_options, outage, own_transactional_id, require_entry
from ingest.kafka.sink import CommitError, SinkRefusedError, TransactionalSink
from ingest.kafka.source import Source
from ingest.process.frame import Process, failing_on
from ingest.process.health import Disks, serve_health
from ingest.sandbox.sandbox import Sandbox, SandboxUnavailableError
from ingest.settings import IngestSettings
from ingest.tracing import exporting
from ingest.trust_anchors import TrustAnchors, TrustAnchorsError

_PROBE_TIMEOUT_S = 1.0
_SCRAPE_TIMEOUT_S = 3.0
"""Prometheus waits 10 s for all metrics together unless told otherwise."""


def work(process: Process) -> None:
    """Run one worker slot until told to stop. Raises ProcessFailedError."""
    ingest, settings = IngestSettings(), DetectorSettings()
    errors = (KafkaError, CommitError, SinkRefusedError, SandboxUnavailableError, TrustAnchorsError, OSError)
    with failing_on(*errors), ExitStack() as parts:
        address = parts.enter_context(
            serve_health(
                process.metrics_host,
                settings.metrics_port,
                process.heartbeat,
                lambda: hindrance(ingest, torchserve, serving),  # not asked before the first beat
            )
        )
        spans = parts.enter_context(exporting("detector", settings.group_id))
        require_entry(kafka_options(ingest), REQUEST_TIMEOUT_S)
        torchserve = parts.enter_context(TorchServe(settings))
        follower = parts.enter_context(ReleaseFollower(ingest))
        holdings = parts.enter_context(closing(Holdings(settings.model_store_dir)))
        wanted = RolloutClient(settings)
        loader = Loader(settings, torchserve, holdings, wanted)
        serving = parts.enter_context(Serving(settings, loader, follower, wanted))
        sandbox = parts.enter_context(Sandbox(ingest, TrustAnchors(settings.c2pa_trust_file)))
        own_id = own_transactional_id(settings.group_id)
        transactional_id = settings.transactional_id or parts.enter_context(own_id)
        sink = parts.enter_context(TransactionalSink(ingest, transactional_id))
        source = parts.enter_context(Source(ingest, settings.group_id))
        ready = metrics.TORCHSERVE_READY
        ready.set_function(lambda: float(unready(torchserve, serving, _SCRAPE_TIMEOUT_S) is None))
        parts.callback(ready.set_function, lambda: 0.0)
        folders = {"model_store": settings.model_store_dir, "tmp": Path(tempfile.gettempdir())}
        REGISTRY.register(Disks(folders))
        process.report_started(health=address, group=settings.group_id, transactional_id=transactional_id)
        beat, stop = process.heartbeat, process.stop
        worker = Worker(source, sandbox, torchserve, serving, sink, ingest, settings, stop, beat, spans)
        their_id = f"{transactional_id}-retraction"
        own = Retracting(sandbox, torchserve, serving, ingest, settings, their_id, worker.idle, stop)
        parts.enter_context(own)
        worker.run()


def hindrance(ingest: IngestSettings, torchserve: TorchServe, serving: Serving) -> str | None:
    """Give in one line why a file would get no verdict now though the loop goes on; None: it would."""
    return outage(kafka_options(ingest), _PROBE_TIMEOUT_S) or unready(torchserve, serving)


def unready(torchserve: TorchServe, serving: Serving, timeout_s: float | None = None) -> str | None:
    """Give in one line why TorchServe would not score with each release that it should; None: it would."""
    route = serving.route
    try:
        served = torchserve.versions(timeout_s)
    except TorchServeError as error:
        return f"TorchServe does not answer: {error}"
    for artifact in route.releases.values() if route else ():
        if not served.get(artifact.version):
            return f"TorchServe has no worker ready for the release {artifact.version}"
    return None

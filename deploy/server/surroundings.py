"""What lies around the server and may be slow to answer: the broker's lag, and what fires in Prometheus."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from deploy.client.prometheus import Alert, PrometheusError, firing_alerts, history
from deploy.group_lag import group_lag
from deploy.records import PartitionLag
from deploy.server.services import Services
from deploy.settings import DeploySettings
from detector.records import UNKNOWNS
from ingest.kafka.access import kafka_options
from ingest.kafka.topics import TopicError
from memory.store import StoreUnavailableError, load_offsets
from memory.verdict_index import count_over_time

_KEPT_S = 5.0
_SPANS_MS = tuple(hours * 3_600_000 for hours in (1, 6, 24))
_PARTS, _SAMPLES = 48, 240
"""of a span: parts whose verdicts are counted, and samples of the lag"""
_LAG = "max(forgewatch_ingest_lag_seconds)"

log = structlog.get_logger()


@dataclass(frozen=True)
class ServerContext:
    """What they said last. A problem says why one is not known; alerts are None without a Prometheus."""

    lag: tuple[PartitionLag, ...] = ()
    lag_problem: str | None = "loading"
    alerts: tuple[Alert, ...] | None = None
    alerts_problem: str | None = None
    since_s: float = 0.0
    """with until_s: the span of what follows, seconds since 1970"""
    until_s: float = 0.0
    counts: tuple[Mapping[str, int], ...] = ()
    """verdicts by their label, in equal parts of the span"""
    lag_samples: tuple[tuple[float, float], ...] = ()
    """when, and how long the oldest unread record had waited then, in seconds"""

    @property
    def waiting(self) -> int:
        """Offsets that are not read yet."""
        return sum(part.lag for part in self.lag)

    @property
    def waits_s(self) -> float | None:
        """How long the oldest record lies there that its group has not read; None: none, or not known."""
        return max((part.seconds for part in self.lag if part.seconds is not None), default=None)


def ask(settings: DeploySettings, services: Services, samples: deque[tuple[float, float]]) -> ServerContext:
    """Ask all of them; what does not answer says so. samples: of the lag, which this adds to."""
    context = _query_surroundings(settings, services)
    now_s = time.time()
    if context.lag_problem is None:
        samples.append((now_s, context.waits_s or 0.0))
    try:
        with services.memory.read() as connection:
            since_ms, counts = count_over_time(connection, round(1000 * now_s), _SPANS_MS, _PARTS)
        lag = tuple(samples)
        if settings.prometheus_url is not None:
            step_s = (now_s - since_ms / 1000) / _SAMPLES
            with suppress(PrometheusError):  # the alerts say it
                lag = tuple(history(settings.prometheus_url, _LAG, since_ms / 1000, now_s, step_s)) or lag
    except StoreUnavailableError:
        return context
    recent = tuple(s for s in lag if s[0] >= since_ms / 1000)
    return replace(context, since_s=since_ms / 1000, until_s=now_s, counts=tuple(counts), lag_samples=recent)


def _query_surroundings(settings: DeploySettings, services: Services) -> ServerContext:
    try:
        lag, lag_problem = lag_of_stream(settings, services)
    except StoreUnavailableError as error:
        lag, lag_problem = [], str(error)
    if settings.prometheus_url is None:
        return ServerContext(tuple(lag), lag_problem)
    try:
        return ServerContext(tuple(lag), lag_problem, tuple(firing_alerts(settings.prometheus_url)))
    except PrometheusError as error:
        return ServerContext(tuple(lag), lag_problem, None, str(error))


class ContextCache:
    """Gives what they said last at once, and asks again behind it: no view waits for a broker."""

    def __init__(self, ask: Callable[[], ServerContext], kept_s: float = _KEPT_S) -> None:
        self._ask, self._kept_s = ask, kept_s
        self._last, self._asked_at = ServerContext(alerts_problem="loading"), float("-inf")
        self._asking = threading.Lock()

    def last(self) -> ServerContext:
        """What was said last; asked anew in a thread where that was too long ago."""
        if time.monotonic() - self._asked_at > self._kept_s and self._asking.acquire(blocking=False):
            threading.Thread(target=self._refresh, name="surroundings", daemon=True).start()
        return self._last

    def _refresh(self) -> None:
        try:
            self._last = self._ask()
        except Exception:
            log.exception("the surroundings cannot be asked")
        finally:
            self._asked_at = time.monotonic()
            self._asking.release()


def lag_of_stream(settings: DeploySettings, services: Services) -> tuple[list[PartitionLag], str | None]:
    """How far the detectors and the memory are behind, or why that is not known.

    Raises memory's StoreUnavailableError.
    """
    with services.memory.read() as connection:
        offsets = load_offsets(connection)
    options, timeout_s = kafka_options(services.ingest), settings.kafka_timeout_s
    topic = services.ingest.topic(UNKNOWNS)
    # The memory's offsets lie in its database, in the transaction of its rows.
    known = {partition: offset for (of, partition), offset in offsets.items() if of == topic}
    try:
        return [
            *group_lag(options, services.detector.group_id, services.ingest.media_topic, timeout_s),
            *group_lag(options, services.memory_settings.group_id, topic, timeout_s, known),
        ], None
    except TopicError as error:
        return [], str(error)

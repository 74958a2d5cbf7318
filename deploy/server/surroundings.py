"""What lies around the server and may be slow to answer: the broker's lag, and what fires in Prometheus."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from deploy.client.prometheus import Alert, PrometheusError, firing_alerts
from deploy.records import PartitionLag
from deploy.server.lag import lag_of_stream
from deploy.server.services import Services
from deploy.settings import DeploySettings
from memory.store import StoreUnavailableError

_KEPT_S = 5.0

log = structlog.get_logger()


@dataclass(frozen=True)
class Surroundings:
    """What they said last. A problem says why one is not known; alerts are None without a Prometheus."""

    lag: tuple[PartitionLag, ...] = ()
    lag_problem: str | None = "asking"
    alerts: tuple[Alert, ...] | None = None
    alerts_problem: str | None = None

    @property
    def waiting(self) -> int:
        """Offsets that are not read yet."""
        return sum(part.lag for part in self.lag)

    @property
    def waits_s(self) -> float | None:
        """How long the oldest record lies there that its group has not read; None: none, or not known."""
        return max((part.seconds for part in self.lag if part.seconds is not None), default=None)


def ask(settings: DeploySettings, services: Services) -> Surroundings:
    """Ask all of them; what does not answer says so."""
    try:
        lag, lag_problem = lag_of_stream(settings, services)
    except StoreUnavailableError as error:
        lag, lag_problem = [], str(error)
    if settings.prometheus_url is None:
        return Surroundings(tuple(lag), lag_problem)
    try:
        return Surroundings(tuple(lag), lag_problem, tuple(firing_alerts(settings.prometheus_url)))
    except PrometheusError as error:
        return Surroundings(tuple(lag), lag_problem, None, str(error))


class Watch:
    """Gives what they said last at once, and asks again behind it: no view waits for a broker."""

    def __init__(self, ask: Callable[[], Surroundings], kept_s: float = _KEPT_S) -> None:
        self._ask, self._kept_s = ask, kept_s
        self._last, self._asked_at = Surroundings(), float("-inf")
        self._asking = threading.Lock()

    def last(self) -> Surroundings:
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

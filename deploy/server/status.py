"""One look at the whole system: what is live, what waits, how far behind, who is alive."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import httpx
from fastapi import APIRouter, Request
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.records import ProcessHealth, Shelved, Status
from deploy.release_records import WAITING
from deploy.releases.publish import recent_raises
from deploy.releases.signing import said_of
from deploy.releases.standing import replay
from deploy.server.releases import entry
from deploy.server.services import Opened, Services
from deploy.server.surroundings import lag_of_stream
from deploy.settings import DeploySettings
from detector.release.artifact import version_of
from memory.rows import counts
from updater.schedule import build_trigger, next_due

router = APIRouter(route_class=GuardedRoute)

_UPDATES_SHOWN, _DUE_SHOWN = 5, 3


@router.get("/status", tags=["status"], openapi_extra=least("viewer"))
def get_status(request: Request, services: Opened) -> Status:
    """The live release, what waits for whom, lag by group and partition, processes that answer."""
    return look(request.app.state.settings, services)


def look(settings: DeploySettings, services: Services) -> Status:
    """Ask everything that a status shows; a part that does not answer is told, not raised.

    Raises LedgerError, memory's StoreUnavailableError.
    """
    events = services.ledger.events()
    standing = replay(events)
    with services.memory.read() as connection:
        shelves = counts(connection)
    lag, lag_problem = lag_of_stream(settings, services)
    return Status(
        live=standing.live,
        previous=standing.previous,
        proposed=[release for release in standing.releases.values() if release.state in WAITING],
        publish_problem=services.publisher.problem,
        record_problem=services.heads.problem,
        signatures=said_of(services.detector.trusted_signers),
        under_way=list(under_way(services)),
        epoch_raises=[entry(event) for event in recent_raises(events, datetime.now(UTC))],
        lag=lag,
        lag_problem=lag_problem,
        unknowns_waiting=sum(count for (shelf, _), count in shelves.items() if shelf == "unknown"),
        shelves=[
            Shelved(shelf=shelf, family=family, count=count)
            for (shelf, family), count in sorted(
                shelves.items(), key=lambda item: (item[0][0], item[0][1] or "")
            )
        ],
        updates=services.runs.newest(_UPDATES_SHOWN),
        due=next_due(build_trigger(services.updater), datetime.now(UTC), _DUE_SHOWN),
        processes=processes_health(settings.health_urls),
    )


def under_way(services: Services) -> Iterator[str]:
    """Yield a sentence each: the rollout, what is being taken back, webhooks that do not take notices.

    Raises LedgerError.
    """
    rollout = services.controller.view()
    if (trial := rollout.trial) is not None:
        shared, answered = trial.shares
        yield (
            f"release {version_of(trial.release)} is on trial, scores {shared:.0%}, answers {answered:.0%}:"
            f" {rollout.problem or rollout.says}"
        )
    for view in services.retractions.view():
        if view.state != "done":
            yield f"verdicts of {version_of(view.release)} are taken back: {view.problem or view.says}"
    for webhook in services.notices.states():
        if webhook.error is not None:
            yield f"webhook {webhook.number} ({webhook.host}) has {webhook.waiting} to take: {webhook.error}"


_HEALTH_TIMEOUT_S = 5.0


def processes_health(addresses: dict[str, str]) -> list[ProcessHealth]:
    """Ask every address at once. Alive is what answers with 200 there and does not call its loop stuck."""
    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        return list(pool.map(_health, addresses, addresses.values()))


def _health(name: str, address: str) -> ProcessHealth:
    try:
        # trust_env would send a cluster's own traffic through a proxy that the environment names.
        with httpx.Client(trust_env=False, timeout=_HEALTH_TIMEOUT_S) as client:
            answer = client.get(address)
            stuck = client.get(answer.url.join("/livez"))
            unready = client.get(answer.url.join("/readyz"))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        down = str(error) or type(error).__name__
        return ProcessHealth(name=name, address=address, alive=False, problem=down)
    if not answer.is_success:
        return ProcessHealth(name=name, address=address, alive=False, problem=f"HTTP {answer.status_code}")
    text = [" ".join(unready.text.split())] if unready.status_code == httpx.codes.SERVICE_UNAVAILABLE else []
    problem = "; ".join([*text, *complaints(answer.text)]) or None
    alive = stuck.status_code != httpx.codes.SERVICE_UNAVAILABLE
    return ProcessHealth(name=name, address=address, alive=alive, problem=problem)


_UNSERVED = "forgewatch_detector_unserved_since_timestamp_seconds"
_ROLLOUT = "forgewatch_detector_rollout_state"
_SERVING = "forgewatch_detector_serving"

_NO_UPDATE = "deploy refuses its token, so updates wait: restart it with today's"

_STATES = {
    "unconfirmed": "the releases topic names a release that deploy does not confirm; it is not served",
    "unreachable": "it cannot reach deploy, and serves the last release that deploy named",
    "refused": "deploy refuses its token, so it serves the last release named: restart it with today's token",
    "nothing_approved": "deploy has approved nothing, and the last release that it named still scores",
}


def complaints(metrics: str) -> list[str]:
    """One phrase for each thing that is not as it should be; metrics is in Prometheus' text format.

    Text that is no such format has no complaints: whether the process lives is asked elsewhere.
    """
    try:
        families = {family.name: family for family in text_string_to_metric_families(metrics)}
    except ValueError:
        return []
    serving = any(sample.value for sample in _samples(families, _SERVING))
    problems = [*_unserved_problems(families), *_rollout(families, serving=serving)]
    return problems + [_NO_UPDATE for s in _samples(families, "forgewatch_updater_token_refused") if s.value]


def _unserved_problems(families: dict[str, Metric]) -> Iterator[str]:
    for sample in _samples(families, _UNSERVED):
        if sample.value:
            since = datetime.fromtimestamp(sample.value, UTC)
            slot = sample.labels["slot"]
            yield f"the {slot} release that it should serve it does not, since {since:%Y-%m-%d %H:%M:%S} UTC"


def _rollout(families: dict[str, Metric], *, serving: bool) -> Iterator[str]:
    for sample in _samples(families, _ROLLOUT):
        state = sample.labels["state"]
        if sample.value and state in _STATES and (serving or state != "nothing_approved"):
            yield _STATES[state]


def _samples(families: dict[str, Metric], name: str) -> list[Sample]:
    return families[name].samples if name in families else []

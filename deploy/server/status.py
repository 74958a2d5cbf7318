"""One look at the whole system: what is live, what waits, how far behind, who is alive."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Request

from deploy.client.records import PartitionLag, Shelved, Status
from deploy.releases.approval import fold
from deploy.releases.epoch import recent_raises
from deploy.server.health import processes_health
from deploy.server.lag import LagError, group_lag
from deploy.server.releases import entry
from deploy.server.services import Services, services
from deploy.settings import DeploySettings
from detector.records import UNKNOWNS
from ingest.kafka.options import kafka_options
from memory.offsets import load_offsets
from memory.rows import counts

router = APIRouter()

_UPDATES_SHOWN = 5


@router.get("/status", tags=["status"])
def get_status(request: Request, parts: Annotated[Services, Depends(services)]) -> Status:
    """The live release, what waits for whom, lag by group and partition, processes that answer."""
    return look(request.app.state.settings, parts)


def look(settings: DeploySettings, parts: Services) -> Status:
    """Ask everything that a status shows; a part that does not answer is told, not raised.

    Raises LedgerError, memory's StoreUnavailableError.
    """
    events = parts.ledger.events()
    standing = fold(events)
    with parts.memory.read() as connection:
        shelves = counts(connection)
        offsets = load_offsets(connection)
    lag, lag_problem = _lag(settings, parts, offsets)
    return Status(
        live=standing.live,
        previous=standing.previous,
        proposed=[
            release for release in standing.releases.values() if release.state in ("proposed", "approved")
        ],
        publish_problem=parts.publisher.problem,
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
        updates=parts.runs.newest(_UPDATES_SHOWN),
        processes=processes_health(settings.health_urls),
    )


def _lag(
    settings: DeploySettings, parts: Services, offsets: dict[tuple[str, int], int]
) -> tuple[list[PartitionLag], str | None]:
    options, timeout_s = kafka_options(parts.ingest), settings.kafka_timeout_s
    topic = parts.ingest.topic(UNKNOWNS)
    # The memory's offsets lie in its database, in the transaction of its rows.
    known = {partition: offset for (of, partition), offset in offsets.items() if of == topic}
    try:
        return [
            *group_lag(options, parts.detector.group_id, parts.ingest.media_topic, timeout_s),
            *group_lag(options, parts.memory_settings.group_id, topic, timeout_s, known),
        ], None
    except LagError as error:
        return [], str(error)

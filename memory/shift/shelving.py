"""An alarm's suspects are put before a person: they become exemplars, a cluster with its evidence.

Items that were called real are not kept, so their media is read again. Exemplars, cluster and evidence are
one SQL transaction, and what is announced is on record before: an alarm may be announced twice, under the
same id, and is never left out.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
import structlog
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from detector.release.contract import PICTURE
from ingest.kafka.sink import TransactionalSink
from ingest.records import CropPlan, Decoded, MediaPlan, OutRecord, PicturePlan
from ingest.reread import MediaReader
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings
from memory import metrics
from memory.clusters.clusters import describe
from memory.clusters.views import upsert_cluster
from memory.crops.crop_store import CropStore
from memory.features import FEATURE_VERSION, WIDTH, Scaling, features_of
from memory.index.index import Index
from memory.intake import Arrival, UnfitItemError, check, remember
from memory.records import ALARMS, DriftAlarm, ShiftAlarm
from memory.rows import now_ms
from memory.schema import drift_alarms, exemplars
from memory.settings import MemorySettings
from memory.shift import drift
from memory.shift.alarms import Alarm, Seen, put_announced, put_shelved, to_announce, to_shelve, waits
from memory.store import Store

ALARM_TYPE = "io.forgewatch.shift-alarm"
DRIFT_TYPE = "io.forgewatch.drift-alarm"

log = structlog.get_logger()

DRAWS = 999


@dataclass(frozen=True)
class Reread:
    """An item whose media was read again: decoded, and its raw features float32 (F,)."""

    item: Seen
    decoded: Decoded
    features: NDArray[np.float32]


def shelve_all(store: Store, ingest: IngestSettings, settings: MemorySettings) -> None:
    """Shelve the suspects of every alarm that waits for it, one alarm a transaction.

    Raises StoreUnavailableError, CropsUnavailableError, SandboxUnavailableError, kafka.errors.KafkaError or
    OSError: then what was not shelved waits for the next call.
    """
    with store.read() as connection:
        waiting = to_shelve(connection)
    if not waiting:
        return
    crops = CropStore(settings.crops_url)
    index = Index.open(settings.index_path, store, FEATURE_VERSION, WIDTH)
    plan = plan_like(store, crops, settings)
    for alarm in waiting:
        shelve(alarm, reread([*alarm.suspects, *alarm.others], ingest, plan), store, crops, index)


def announce_all(store: Store, ingest: IngestSettings, settings: MemorySettings) -> None:
    """Write the alarms that are shelved, and those of drift, to their topic.

    Raises SinkError, kafka.errors.KafkaError or StoreUnavailableError.
    """
    with store.read() as connection:
        waiting, drifts = to_announce(connection), drift.to_announce(connection)
    if not waiting and not drifts:
        return
    alarms: list[ShiftAlarm | DriftAlarm] = [*waiting, *drifts]
    events = [event(alarm, ingest.topic(ALARMS)) for alarm in alarms]
    # An alarm may be written twice after a crash, so no identity need outlive this call.
    with closing(TransactionalSink(ingest, f"{settings.verdicts_group_id}-{uuid4().hex}")) as sink:
        sink.commit(events, {}, None)
    with store.write_unversioned() as connection:
        put_announced(connection, [alarm.id for alarm in waiting])
        put_announced(connection, [alarm.id for alarm in drifts], drift_alarms)


def event(alarm: ShiftAlarm | DriftAlarm, topic: str) -> OutRecord:
    """Return an alarm as a CloudEvent (Kafka binding, binary mode), whose key is its source.

    Of all sources together the key is empty.
    """
    kind, event_type = ("drift", DRIFT_TYPE) if isinstance(alarm, DriftAlarm) else ("shift", ALARM_TYPE)
    attributes = {
        "ce_specversion": "1.0",
        "ce_id": f"{kind}-{alarm.id}",
        "ce_source": "/forgewatch/memory",
        "ce_type": event_type,
        "ce_time": alarm.at.isoformat(),
        "content-type": "application/json",
    }
    headers = tuple((name, value.encode()) for name, value in attributes.items())
    return OutRecord(topic, (alarm.source or "").encode(), alarm.model_dump_json().encode(), headers)


def plan_like(store: Store, crops: CropStore, settings: MemorySettings) -> MediaPlan:
    """Return how media is to be cut to be like the newest exemplar that has its crops."""
    newest = select(exemplars.c.crops_digest).where(exemplars.c.crops_digest.is_not(None))
    with store.read() as connection:
        digest = connection.scalar(newest.order_by(exemplars.c.revision.desc()).limit(1))
    if digest is None:
        return MediaPlan()
    views, picture, _ = crops.load_views(digest)
    if picture is None:
        return MediaPlan(crops=CropPlan(crop_px=views.shape[1]))
    height, width = picture.shape[:2]
    whole = PicturePlan(width_px=width, height_px=height, interpolation=settings.picture_interpolation)
    return MediaPlan(crops=CropPlan(crop_px=views.shape[1]), pictures={PICTURE: whole})


def reread(wanted: Sequence[Seen], ingest: IngestSettings, plan: MediaPlan) -> dict[Seen, Reread]:
    """Return those items whose media could be read, decoded and measured again. Raises as `shelve_all`."""
    items = {}
    with Sandbox(ingest) as sandbox, MediaReader(ingest) as reader:
        for item, media in reader.media(wanted):
            try:
                decoded = sandbox.submit(media, plan).result()
                items[item] = Reread(item, decoded, features_of(decoded.crops))
            except (DecodeError, ValueError) as error:
                log.info("suspect cannot be decoded again", offset=item.offset, error=str(error))
    return items


def shelve(alarm: Alarm, media: Mapping[Seen, Reread], store: Store, crops: CropStore, index: Index) -> None:
    """Remember the suspects that were found, and put the alarm's cluster and evidence on record."""
    arrivals = _fit(alarm, [media[item] for item in alarm.suspects if item in media])
    others = [media[item].features for item in alarm.others if item in media]
    rows = _matrix([arrival.features for arrival in arrivals])
    digests = crops.put_all([arrival.views for arrival in arrivals])
    with store.write() as connection:
        if not waits(connection, alarm.id):
            return  # another process of this memory did it
        remember(connection, crops, index, arrivals, digests)
        held = _waiting(connection, arrivals)
        evidence = ShiftAlarm(
            id=alarm.id,
            suspects=len(alarm.suspects),
            missing=len(alarm.suspects) - len(arrivals),
            cohesion=cohesion(rows, _matrix(others), alarm.id),
            cluster=_put_cluster(connection, alarm.id, held) if held else None,
            **dict(alarm.raised),
        )
        put_shelved(connection, evidence)
    metrics.SUSPECTS_MISSING.inc(evidence.missing)
    log.warning("suspects of a shift shelved", **evidence.model_dump(exclude={"at"}))


def _fit(alarm: Alarm, items: Sequence[Reread]) -> list[Arrival]:
    fit = []
    for again in items:
        item = again.item
        arrival = Arrival.of(
            again.decoded,
            id=f"{item.topic}-{item.partition}-{item.offset}",
            media_digest=item.digest,
            source=alarm.raised.source,
            features=again.features,
            release=alarm.raised.release,
            unknown_score=item.score,
            received_at=alarm.raised.at,
        )
        try:
            fit.append(check(arrival))
        except UnfitItemError as error:
            log.info("suspect cannot be remembered", item=arrival.id, error=str(error))
    return fit


def _waiting(connection: Connection, arrivals: Sequence[Arrival]) -> dict[str, Arrival]:
    """Return those of arrivals that lie on the unknown shelf, by the ids of their rows."""
    by_media = {arrival.media_digest: arrival for arrival in arrivals}
    query = select(exemplars.c.id, exemplars.c.media_digest).where(
        exemplars.c.shelf == "unknown", exemplars.c.media_digest.in_(list(by_media))
    )
    return {row.id: by_media[row.media_digest] for row in connection.execute(query)}


def _put_cluster(connection: Connection, alarm: int, held: Mapping[str, Arrival]) -> str:
    names = sorted(held)
    raw = _matrix([held[name].features for name in names])
    whole = describe(names, Scaling.fit(raw).apply(raw), np.arange(len(names)), None)
    return upsert_cluster(
        connection, whole.members, shown_ms=now_ms(), spread=whole.spread, unclustered=False, alarm=alarm
    )


def _matrix(rows: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.stack(rows) if len(rows) else np.zeros((0, WIDTH), np.float32)


def cohesion(suspects: NDArray[np.float32], others: NDArray[np.float32], seed: int) -> float | None:
    """Return the p-value of the suspects' deviating in no common direction: small where they cohere.

    suspects float32 (m, F) and others (n, F) are raw features; None for m < 3 or n < m, which say nothing.
    All m + n are scaled, centred and whitened together, with a ridge of their mean variance. The measure is
    the mean inner product of two suspects: pictures of one kind show different things, so that they lie as
    far apart as others do, but are displaced alike. It is ranked among those of DRAWS random m of the m + n
    (a permutation test, with the + 1: Phipson and Smyth 2010), so that it is at most a with a chance of at
    most a where suspects are like the others. So the others must be chosen by their scores as suspects are.
    """
    m = len(suspects)
    if m < 3 or len(others) < m:
        return None
    pool = np.concatenate([suspects, others])
    z = Scaling.fit(pool).apply(pool).astype(np.float64)
    left, lengths, _ = np.linalg.svd(z - z.mean(0), full_matrices=False)
    ridge = max(float((lengths**2).mean()), 1e-12)
    white = left * (lengths / np.sqrt(lengths**2 + ridge))
    alike = white @ white.T
    np.fill_diagonal(alike, 0)
    observed = alike[:m, :m].sum()
    rng = np.random.default_rng(seed)
    drawn = (rng.permutation(len(z))[:m] for _ in range(DRAWS))
    as_alike = sum(bool(alike[np.ix_(some, some)].sum() >= observed - 1e-9) for some in drawn)
    return (1 + as_alike) / (1 + DRAWS)

"""What must be there before any process starts: each room's tables in today's layout, and every topic."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from deploy.record.heads import HEADS
from deploy.releases.ledger import Ledger, LedgerError
from deploy.settings import DeploySettings
from detector.records import (
    COMPARISONS,
    MAX_COMPARISON_BYTES,
    RELEASES,
    RETRACTIONS,
    UNKNOWNS,
    VERDICTS,
)
from detector.unknowns import MAX_MESSAGE_BYTES
from ingest.kafka.topics import Topic, ingest_topics
from ingest.replay import REPLAYS
from ingest.settings import HEADER_ROOM_BYTES, IngestSettings
from memory.database import UnknownLayoutError, cause_of, migrate, open_engine, require_openable
from memory.records import ALARMS, MAX_ALARM_BYTES
from memory.settings import MemorySettings
from memory.store import ExemplarMemoryError, Store
from updater.runs import open_runs
from updater.settings import UpdaterSettings


class LayoutError(Exception):
    """A database could not be brought to today's layout; it is as it was."""


_FAILURES = (SQLAlchemyError, UnknownLayoutError, ExemplarMemoryError, LedgerError, OSError)


@dataclass(frozen=True)
class _Room:
    name: str
    url: str
    package: str
    first_table: str
    open: Callable[[], None]
    """Opens it as its process does, which proves what was made."""


def migrate_all() -> Iterator[str]:
    """Migrate each room's database in a transaction of its own; yield what was done there, in a line each.

    To do it again does nothing. Raises WrongSettingError, LayoutError.
    """
    for room in _rooms():
        setting = f"FORGEWATCH_{room.name.upper()}_DATABASE_URL"
        require_openable(setting, room.url)
        try:
            before, after = _migrated(room)
            room.open()
        except _FAILURES as error:
            raise LayoutError(f"{setting}: {cause_of(error)}") from error
        at = make_url(room.url).render_as_string(hide_password=True)
        done = "is there already" if before == after else f"made from {before or 'an empty database'}"
        yield f"{room.name}: layout {after} {done} ({at})"


def _migrated(room: _Room) -> tuple[str | None, str]:
    engine = open_engine(room.url)
    try:
        with engine.begin() as connection:
            return migrate(connection, room.package, room.first_table)
    finally:
        engine.dispose()


def _rooms() -> tuple[_Room, ...]:
    memory, updater, deploy = MemorySettings(), UpdaterSettings(), DeploySettings()
    return (
        _Room(
            "memory",
            memory.database_url,
            "memory.migrations",
            "exemplars",
            lambda: Store(memory.database_url).close(),
        ),
        _Room(
            "updater",
            updater.database_url,
            "updater.migrations",
            "updater_runs",
            lambda: open_runs(updater).close(),
        ),
        _Room(
            "deploy",
            deploy.database_url,
            "deploy.releases.migrations",
            "deploy_ledger",
            lambda: Ledger(deploy.database_url).close(),
        ),
    )


def all_topics(ingest: IngestSettings, partitions: int) -> tuple[Topic, ...]:
    """The topics that the processes use; `partitions` is that of the media and all that follows from it.

    The topics of releases and of the record's heads have one partition and are compacted: tables by key.
    """
    return (
        *ingest_topics(ingest, partitions),
        Topic(ingest.topic(VERDICTS), ingest.max_record_bytes, partitions),
        Topic(ingest.topic(UNKNOWNS), MAX_MESSAGE_BYTES + HEADER_ROOM_BYTES, partitions),
        Topic(ingest.topic(COMPARISONS), MAX_COMPARISON_BYTES, partitions),
        Topic(ingest.topic(RETRACTIONS), MAX_COMPARISON_BYTES),
        Topic(ingest.topic(ALARMS), MAX_ALARM_BYTES),
        Topic(ingest.topic(RELEASES), ingest.max_media_bytes, compacted=True),
        Topic(ingest.topic(REPLAYS), HEADER_ROOM_BYTES, compacted=True),
        Topic(ingest.topic(HEADS), HEADER_ROOM_BYTES, compacted=True),
    )

"""Needed before any process starts: each room's tables in today's layout, and every topic."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from sqlalchemy.exc import SQLAlchemyError

from deploy.record.heads import HEADS
from deploy.releases.ledger import Ledger, LedgerError
from deploy.settings import DeploySettings
from detector.records import COMPARISONS, MAX_COMPARISON_BYTES, RELEASES, RETRACTIONS, UNKNOWNS, VERDICTS
from detector.unknowns import MAX_MESSAGE_BYTES
from ingest.dead_letters import REPLAYS
from ingest.kafka.access import kafka_options
from ingest.kafka.topics import Topic, ingest_topics
from ingest.settings import HEADER_ROOM_BYTES, IngestSettings
from memory.database import UnknownLayoutError, cause_of, migrate, open_engine, require_openable, show_url
from memory.records import ALARMS, MAX_ALARM_BYTES
from memory.settings import MemorySettings
from memory.store import ExemplarMemoryError, Store
from updater.runs import open_runs
from updater.settings import UpdaterSettings


class DatabaseLayoutError(Exception):
    """A database could not be brought to today's layout; it is as it was."""


_FAILURES = (SQLAlchemyError, UnknownLayoutError, ExemplarMemoryError, LedgerError, OSError)


@dataclass(frozen=True)
class _Room:
    name: str
    url: str
    package: str
    open: Callable[[], None]
    """Opens it as its process does, which proves what was made."""


def migrate_all() -> Iterator[str]:
    """Migrate each room's database in a transaction of its own; yield a line on each.

    To do it again does nothing. Raises WrongSettingError, LayoutError.
    """
    for room in _rooms():
        setting = f"FORGEWATCH_{room.name.upper()}_DATABASE_URL"
        require_openable(setting, room.url)
        try:
            before, after = _migrate_room(room)
            room.open()
        except _FAILURES as error:
            raise DatabaseLayoutError(f"{setting}: {cause_of(error)}") from error
        at = show_url(room.url)
        done = "is there already" if before == after else f"made from {before or 'an empty database'}"
        yield f"{room.name}: layout {after} {done} ({at})"


def _migrate_room(room: _Room) -> tuple[str | None, str]:
    engine = open_engine(room.url)
    try:
        with engine.begin() as connection:
            return migrate(connection, room.package)
    finally:
        engine.dispose()


def _rooms() -> tuple[_Room, ...]:
    memory, updater, deploy = MemorySettings(), UpdaterSettings(), DeploySettings()
    return (
        _Room("memory", memory.database_url, "memory.migrations", lambda: Store(memory.database_url).close()),
        _Room("updater", updater.database_url, "updater.migrations", lambda: open_runs(updater).close()),
        _Room(
            "deploy",
            deploy.database_url,
            "deploy.releases.migrations",
            lambda: Ledger(deploy.database_url).close(),
        ),
    )


def all_topics(ingest: IngestSettings, partitions: int) -> tuple[Topic, ...]:
    """The topics that the processes use; `partitions`: of the media topic and those behind it.

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


_LEAST_RETENTION_MS = 3_600_000
_LEAST_RECORDS = 64


class Topics(NamedTuple):
    """Names of missing topics, problems of others with a remedy each, and a note."""

    missing: list[str]
    problems: list[tuple[str, str]]
    note: str


def examine_topics(ingest: IngestSettings, timeout_ms: int) -> Topics:
    """Ask the broker how all topics are set. Raises KafkaError."""
    wanted = {topic.name: topic for topic in all_topics(ingest, partitions=1)}
    admin = KafkaAdminClient(**kafka_options(ingest), bootstrap_timeout_ms=timeout_ms)
    try:
        there = sorted(wanted.keys() & set(admin.list_topics()))
        partitions = {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics(there)}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in there]
        configs = admin.describe_configs(resources, config_filter="all")["topic"] if there else {}
    finally:
        admin.close()
    problems: list[tuple[str, str]] = []
    for name in there:
        config = {key: value["value"] for key, value in configs[name].items()}
        problems += topic_problems(wanted[name], config, partitions[name])
    packing = configs.get(ingest.media_topic, {}).get("compression.type", {}).get("value", "uncompressed")
    note = f"; {ingest.media_topic} has compression.type {packing}: a batch that unpacks to more than "
    note += f"{ingest.max_record_bytes} bytes becomes a dead letter"
    missing = sorted(wanted.keys() - set(there))
    return Topics(missing, problems, note if packing != "uncompressed" else "")


def topic_problems(topic: Topic, config: Mapping[str, str], partitions: int) -> Iterator[tuple[str, str]]:
    """Yield a topic's problems with a remedy each: by its configuration and its partitions."""
    name, policy = topic.name, {part.strip() for part in config["cleanup.policy"].split(",")}
    if (limit := int(config["max.message.bytes"])) < topic.max_record_bytes:
        yield (
            f"{name} takes {limit} bytes, but {topic.max_record_bytes} may come",
            f"raise max.message.bytes of {name}, or a partition will stand still for ever",
        )
    if topic.compacted != ("compact" in policy) or len(policy) > 1:
        policy_wanted, lost = "delete", "forgets records, and takes none without a key"
        if topic.compacted:
            policy_wanted, lost = "compact", "deletes records that it must keep"
        yield (
            f"{name} has cleanup.policy {config['cleanup.policy']}: it {lost}",
            f"set cleanup.policy of {name} to {policy_wanted}",
        )
    if topic.compacted and partitions != 1:
        yield (
            f"{name} has {partitions} partitions; one is read",
            f"delete {name} and run `forgewatch topics`; deploy writes it anew",
        )
    for setting, least in (
        ("retention.ms", _LEAST_RETENTION_MS),
        ("retention.bytes", _LEAST_RECORDS * topic.max_record_bytes),
    ):
        if not topic.compacted and 0 <= int(config[setting]) < least:
            yield (
                f"{name} has {setting} {config[setting]}: waiting records are deleted unread",
                f"raise {setting} of {name} to {least} at least",
            )

"""Following the compacted control topic: which release does deploy want served?"""

from types import TracebackType
from typing import Self

import structlog
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import AuthorizationError, KafkaError, TopicAuthorizationFailedError
from pydantic import ValidationError

from detector.records import Rollout
from ingest.access import refused
from ingest.settings import IngestSettings, kafka_options

log = structlog.get_logger()


class ReleaseFollower:
    """A reader of the releases topic, from its beginning and without a group: each worker sees all of it."""

    def __init__(self, settings: IngestSettings, topic: str) -> None:
        """Assign the topic's only partition; nothing is read yet. Raises KafkaError without a broker."""
        self.wanted: Rollout | None = None
        self._options = kafka_options(settings)
        self._consumer = KafkaConsumer(
            **self._options,
            group_id=None,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        partition = TopicPartition(topic, 0)
        self._consumer.assign([partition])
        self._consumer.seek_to_beginning(partition)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def poll(self, timeout_s: float = 0.0) -> Rollout | None:
        """Read what is new and return what is wanted now; None before deploy has said anything.

        A record with a lower sequence than one already seen is an echo and changes nothing. Raises
        ingest.access.BrokerRefusedError where an ACL is in the way; any other fault is taken to pass.
        """
        try:
            batches = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
            # An assigned topic that may not even be described is waited for in silence.
            if lacking := self._consumer._cluster.unauthorized_topics:
                raise TopicAuthorizationFailedError(lacking)
        except AuthorizationError as error:
            raise refused(error, self._options) from error
        except KafkaError as error:
            log.warning("the releases topic cannot be read now", error=str(error))
            return self.wanted
        for record in (record for records in batches.values() for record in records):
            try:
                rollout = Rollout.model_validate_json(record.value or b"")
            except ValidationError as error:
                log.warning(
                    "a record of the releases topic is no rollout", offset=record.offset, error=str(error)
                )
                continue
            if self.wanted is None or _place(rollout) >= _place(self.wanted):
                self.wanted = rollout
        return self.wanted


def _place(rollout: Rollout) -> tuple[int, int]:
    return rollout.epoch, rollout.sequence

"""Following the compacted control topic: which rollout does it name?"""

from types import TracebackType
from typing import Self

import structlog
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import AuthorizationError, KafkaError, TopicAuthorizationFailedError
from pydantic import ValidationError

from detector.records import RELEASES, Rollout
from ingest.kafka.access import refused
from ingest.kafka.options import kafka_options
from ingest.settings import IngestSettings

log = structlog.get_logger()


class ReleaseFollower:
    """A reader of the releases topic, from its beginning and without a group: each worker sees all of it.

    Whoever may write to the topic can write anything: what it names is a reason to ask deploy, and no
    more (detector.serving.rollout).
    """

    def __init__(self, settings: IngestSettings) -> None:
        """Assign the topic's only partition; nothing is read yet. Raises KafkaError without a broker."""
        self.newest: Rollout | None = None
        self._options = kafka_options(settings)
        self._consumer = KafkaConsumer(
            **self._options,
            group_id=None,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        partition = TopicPartition(settings.topic(RELEASES), 0)
        self._consumer.assign([partition])
        self._consumer.seek_to_beginning(partition)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def poll(self, timeout_s: float = 0.0) -> Rollout | None:
        """Read what is new and return the newest rollout; None where there was none yet.

        A record that is no rollout, as an earlier version wrote them, is told once and left out. Raises
        ingest.kafka.access.BrokerRefusedError where an ACL is in the way; any other fault is taken to pass.
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
            return self.newest
        for record in (record for records in batches.values() for record in records):
            try:
                self.newest = Rollout.model_validate_json(record.value or b"")
            except ValidationError as error:
                (problem, *_) = error.errors(include_input=False, include_url=False)
                log.warning(
                    "a record of the releases topic is no rollout",
                    offset=record.offset,
                    field=".".join(map(str, problem["loc"])),
                    error=problem["msg"],
                )
        return self.newest

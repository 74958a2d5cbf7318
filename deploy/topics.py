"""Every topic of the loop, with its size, in one place for whoever creates or checks them."""

from detector.records import RELEASES, UNKNOWNS, VERDICTS
from detector.unknowns import MAX_MESSAGE_BYTES
from ingest.kafka.topics import Topic, ingest_topics
from ingest.settings import HEADER_ROOM_BYTES, IngestSettings
from memory.records import ALARMS, MAX_ALARM_BYTES


def all_topics(ingest: IngestSettings, partitions: int) -> tuple[Topic, ...]:
    """The topics that the processes use; `partitions` is that of the media and all that follows from it.

    The releases topic has one partition and is compacted: the newest rollout is all that counts.
    """
    return (
        *ingest_topics(ingest, partitions),
        Topic(ingest.topic(VERDICTS), ingest.max_record_bytes, partitions),
        Topic(ingest.topic(UNKNOWNS), MAX_MESSAGE_BYTES + HEADER_ROOM_BYTES, partitions),
        Topic(ingest.topic(ALARMS), MAX_ALARM_BYTES),
        Topic(ingest.topic(RELEASES), ingest.max_media_bytes, compacted=True),
    )

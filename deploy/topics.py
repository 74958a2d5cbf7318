"""Every topic of the loop, with its size, in one place for whoever creates or checks them."""

from detector.settings import DetectorSettings
from ingest.kafka.topics import Topic, ingest_topics
from ingest.settings import HEADER_ROOM_BYTES, IngestSettings
from memory.records import MAX_ALARM_BYTES
from memory.settings import MemorySettings


def all_topics(
    ingest: IngestSettings, detector: DetectorSettings, memory: MemorySettings, partitions: int
) -> tuple[Topic, ...]:
    """The topics that the processes use; `partitions` is that of the media and all that follows from it.

    The releases topic has one partition and is compacted: the newest rollout is all that counts.
    """
    return (
        *ingest_topics(ingest, partitions),
        Topic(detector.verdicts_topic, ingest.max_record_bytes, partitions),
        Topic(detector.unknowns_topic, detector.max_unknown_message_bytes + HEADER_ROOM_BYTES, partitions),
        Topic(memory.alarms_topic, MAX_ALARM_BYTES),
        Topic(detector.releases_topic, ingest.max_media_bytes, compacted=True),
    )

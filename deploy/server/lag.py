"""How far the stream is behind: of each group that reads it, in records and in seconds."""

from deploy.group_lag import group_lag
from deploy.records import PartitionLag
from deploy.server.services import Services
from deploy.settings import DeploySettings
from detector.records import UNKNOWNS
from ingest.kafka.access import kafka_options
from ingest.kafka.compacted import TopicError
from memory.store import load_offsets


def lag_of_stream(settings: DeploySettings, services: Services) -> tuple[list[PartitionLag], str | None]:
    """How far the detectors and the memory are behind, or why that is not known.

    Raises memory's StoreUnavailableError.
    """
    with services.memory.read() as connection:
        offsets = load_offsets(connection)
    options, timeout_s = kafka_options(services.ingest), settings.kafka_timeout_s
    topic = services.ingest.topic(UNKNOWNS)
    # The memory's offsets lie in its database, in the transaction of its rows.
    known = {partition: offset for (of, partition), offset in offsets.items() if of == topic}
    try:
        return [
            *group_lag(options, services.detector.group_id, services.ingest.media_topic, timeout_s),
            *group_lag(options, services.memory_settings.group_id, topic, timeout_s, known),
        ], None
    except TopicError as error:
        return [], str(error)

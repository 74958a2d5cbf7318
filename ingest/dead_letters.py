"""Makes the record that says why an item got no verdict."""

from ingest.records import InRecord, MediaError, OutRecord
from ingest.settings import IngestSettings
from ingest.sink import record_bytes

_PREFIX = "__forgewatch.errors."
_MOST_TEXT_BYTES = 1024


def dead_letter(record: InRecord, stage: str, error: Exception, settings: IngestSettings) -> OutRecord:
    """Make the dead letter of a record: key, value and headers byte for byte, and what went wrong.

    Headers are added: __forgewatch.errors.{topic, partition, offset, stage, exception, reason, message},
    the texts cut at 1 kB. Kafka-python cannot write a header whose value is null; it becomes empty and
    is named in __forgewatch.errors.null_headers. A record that grew beyond what the topic takes (its
    batch was compressed) loses its value, and says so in __forgewatch.errors.value_omitted_bytes; the
    original stays where topic, partition and offset point.
    """
    reason = error.reason if isinstance(error, MediaError) else "unexpected"
    facts = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "stage": stage,
        "exception": type(error).__name__,
        "reason": reason,
        "message": str(error),
    }
    added = [(_PREFIX + name, _cut(text)) for name, text in facts.items()]
    nulls = [name for name, raw in record.headers if raw is None]
    if nulls:
        added.append((_PREFIX + "null_headers", _cut(",".join(nulls))))
    headers = [(name, raw or b"") for name, raw in record.headers]
    key, value = record.key, record.value
    if record_bytes(key, value, headers + added) > settings.max_record_bytes:
        added.append((_PREFIX + "value_omitted_bytes", str(len(value or b"")).encode()))
        value = None
        if record_bytes(key, None, headers + added) > settings.max_record_bytes:
            key, headers = None, []
    return OutRecord(settings.dead_letters_topic, key, value, tuple(headers + added))


def _cut(text: str) -> bytes:
    return text.encode("utf-8", "replace")[:_MOST_TEXT_BYTES].decode("utf-8", "ignore").encode()

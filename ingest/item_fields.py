"""What a line of the log says of the item that it is about: the same fields everywhere."""

from ingest.records import InRecord
from ingest.trace_context import TraceContext

_MAX_TOLD_CHARS = 300


def about(
    record: InRecord,
    *,
    item: str | None = None,
    release: str | None = None,
    trace: TraceContext | None = None,
) -> dict[str, object]:
    """Give the fields: item, topic, partition and offset, and, where there is one, release and trace_id.

    item is the item's id where that is not the record's own, release a release's short name.
    """
    fields: dict[str, object] = {
        "item": item or record.id,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
    }
    if release is not None:
        fields["release"] = release
    if trace is not None:
        fields["trace_id"] = trace.trace_id
    return fields


def told(error: Exception) -> str:
    """An error's text in one printable line: it may quote what a stranger sent."""
    return str(error)[:_MAX_TOLD_CHARS].encode("unicode_escape").decode()

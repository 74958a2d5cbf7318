"""The dead letter of an item without a verdict, the fields of its line in the log, and its replay."""

from collections.abc import Iterable

from ingest.kafka.sink import record_bytes
from ingest.records import InRecord, MediaError, OutRecord
from ingest.settings import IngestSettings
from ingest.trace_context import TraceContext

PREFIX = "__forgewatch.errors."
# What a dead letter says in headers: each is PREFIX and its name.
FACTS = ("topic", "partition", "offset", "stage", "exception", "reason", "message")

_MOST_TEXT_BYTES, _MAX_TOLD_CHARS = 1024, 300

# The compacted topic of what was replayed: the key is the letter's id.
REPLAYS = "replays"

# Headers of a replayed record: the letter's id, and how often the record was replayed by then.
REPLAY_OF, REPLAY_COUNT = "__forgewatch.replay_of", "__forgewatch.replay_count"

_OMITTED = "_omitted_bytes"


def dead_letter(record: InRecord, stage: str, error: Exception, settings: IngestSettings) -> OutRecord:
    """Make the dead letter of a record: key, value and headers byte for byte, and the error.

    A producer's own headers of our prefix are left out, so that what stands there is ours.
    Headers are added: __forgewatch.errors.{topic, partition, offset, stage, exception, reason, message},
    the texts cut at 1 kB. Kafka-python cannot write a header whose value is null; it becomes empty and
    is named in __forgewatch.errors.null_headers. Of a record that grew beyond what the topic takes (its
    batch was compressed), the largest of value, headers and key is left out, and the next, until the
    letter fits; __forgewatch.errors.{value, headers, key}_omitted_bytes says so. The original stays
    where topic, partition and offset point.
    """
    reason = error.reason if isinstance(error, MediaError) else "unexpected"
    at = record.topic, str(record.partition), str(record.offset)
    facts = zip(FACTS, (*at, stage, type(error).__name__, reason, str(error)), strict=True)
    added = [(PREFIX + name, _clip_text(text)) for name, text in facts]
    came = as_it_came(record.headers)
    nulls = [name for name, raw in came if raw is None]
    if nulls:
        added.append((PREFIX + "null_headers", _clip_text(",".join(nulls))))
    headers = [(name, raw or b"") for name, raw in came]
    sizes = {
        "value": len(record.value or b""),
        "headers": record_bytes(None, None, headers) - record_bytes(None, None, ()),
        "key": len(record.key or b""),
    }
    topic, key, value = settings.dead_letters_topic, record.key, record.value
    for part in sorted(sizes, key=sizes.__getitem__, reverse=True):
        letter = OutRecord(topic, key, value, (*headers, *added))
        if record_bytes(letter.key, letter.value, letter.headers) <= settings.max_record_bytes:
            return letter
        key, value = None if part == "key" else key, None if part == "value" else value
        headers = [] if part == "headers" else headers
        added.append((f"{PREFIX}{part}_omitted_bytes", str(sizes[part]).encode()))
    return OutRecord(topic, None, None, tuple(added))


def as_it_came(headers: Iterable[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """Give the headers without those of our prefix, in any case of letters, in their order."""
    return [(name, raw) for name, raw in headers if not name.lower().startswith(PREFIX)]


def _clip_text(text: str) -> bytes:
    return text.encode("utf-8", "replace")[:_MOST_TEXT_BYTES].decode("utf-8", "ignore").encode()


def as_fields(
    record: InRecord, *, item: str = "", release: str | None = None, trace: TraceContext | None = None
) -> dict[str, object]:
    """Give the fields: item, topic, partition and offset, and, where there is one, release and trace_id.

    item is the item's id where that is not the record's own, release a release's short name.
    """
    at = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    there = {"release": release, "trace_id": trace and trace.trace_id}
    return {"item": item or record.id, **at, **{name: text for name, text in there.items() if text}}


def printable(error: Exception | str) -> str:
    """An error's text in one printable line: it may quote a stranger's bytes."""
    return str(error)[:_MAX_TOLD_CHARS].encode("unicode_escape").decode()


class ReplayError(Exception):
    """Fatal for this letter: the text says why it cannot be replayed."""


def replay_count(letter: InRecord) -> int:
    """How often the record in this letter was replayed before; a number that is none counts as 0."""
    value = dict(letter.headers).get(REPLAY_COUNT) or b""
    return int(value) if value.isdigit() and len(value) < 4 else 0


def origin(letter: InRecord) -> tuple[str, int, int]:
    """Topic, partition and offset of the record that became this letter. Raises ReplayError."""
    facts = {name: (raw or b"").decode(errors="replace") for name, raw in letter.headers}
    try:
        return facts[f"{PREFIX}topic"], int(facts[f"{PREFIX}partition"]), int(facts[f"{PREFIX}offset"])
    except (KeyError, ValueError) as error:
        raise ReplayError("it does not say where it came from: it is no dead letter of ours") from error


def is_cut(letter: InRecord) -> bool:
    """Whether the letter lacks a part of its record, which was too large for it."""
    return any(name.startswith(PREFIX) and name.endswith(_OMITTED) for name, _ in letter.headers)


def build_replay(letter: InRecord, record: InRecord) -> OutRecord:
    """Give the record as it came, for the topic that it came on, marked as a replay.

    record: the letter itself, or, where that is cut, the original. Kafka-python cannot write a header
    whose value is null: it is empty, as it is in the letter. Raises ReplayError.
    """
    topic, _, _ = origin(letter)
    marks = {REPLAY_OF: letter.id.encode(), REPLAY_COUNT: str(replay_count(letter) + 1).encode()}
    kept = [(name, raw or b"") for name, raw in as_it_came(record.headers) if name not in marks]
    return OutRecord(topic, record.key, record.value, (*kept, *marks.items()))

"""Opens a record of the media topic: CloudEvents (Kafka binding 1.0.2, both modes) or bare media.

Media may come as a reference, too: a file: URL below one configured folder, nothing else.
"""

import hashlib
import json
import os
import re
import stat
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote_to_bytes, urlsplit

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary_event, from_structured_event

from ingest.dead_letters import printable
from ingest.records import InRecord, MediaError, MediaItem, Unreadable
from ingest.settings import IngestSettings
from ingest.trace_context import TRACEPARENT, TRACESTATE, TraceContext, of_headers, trace_context

_OfEvents = Literal["bad_header", "bad_event", "unknown_specversion", "unsupported_format"]
_OfDatarefs = Literal["dataref_refused", "dataref_missing"]
EnvelopeReason = Literal["null_value", "unreadable", "no_media", "too_large", _OfEvents, _OfDatarefs]
Headers = Sequence[tuple[str, bytes | None]]

_STRUCTURED = "application/cloudevents"
_JSON = _STRUCTURED + "+json"
_SPECVERSIONS = ("1.0", "0.3")
_OF_TRACES = ("ce_traceparent", "ce_tracestate")
# These attributes travel on into the verdict, its headers, the memory's rows and a person's terminal.
_MAX_ATTRIBUTE_CHARS = 1024
_MAX_SOURCE_CHARS = 1000
# Of so many keys it is known that they came, those that came last: 30 MB at most.
_MOST_KEYS = 100_000
_NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO that has no writer would wait for ever.
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC


class EnvelopeError(MediaError):
    """A record that carries no media in a form that is understood; reason is an EnvelopeReason."""


def open_envelope(record: InRecord, settings: IngestSettings) -> tuple[MediaItem, bytes]:
    """Take the media out of a record, fetching it where the record only refers to it.

    A content type of application/cloudevents… makes the value a structured event; otherwise a ce_…
    header makes the headers a binary event; otherwise a value that is a JSON object with a specversion
    is a structured event, since clients are in use that say the data's content type there or none;
    otherwise the value is the media. Media in the record goes before a dataref beside it. The place in a
    trace is the event's (CloudEvents' extension distributed tracing) before the headers' traceparent and
    tracestate; a malformed one counts as none. Returns the item, whose texts are free of control
    characters and surrogates, and its bytes, which may be empty.

    The source of a bare value is its header `source`, or its key, so that a camera that only sets a key is a
    source of its own.

    Raises EnvelopeError, with one clear reason, and nothing else.
    """
    headers, value = record.headers, record.value
    if isinstance(value, Unreadable):
        raise EnvelopeError("unreadable", value.why)
    named = _event_headers(headers)
    content_type = named.get("content-type")
    if content_type is not None and content_type.lower().startswith(_STRUCTURED):
        event, media = _read_structured(content_type.lower().partition(";")[0].strip(), value)
        content_type = None
    elif any(name.startswith("ce_") for name in named):
        event, media = _binary(named), value
    elif _looks_structured(value):
        event, media = _read_structured(_JSON, value)
    else:
        event, media = None, value
    if event is None:
        media_id, source, declared, dataref = None, _source_of_bare(record), content_type, None
    else:
        media_id, source = event.get_id(), event.get_source()
        declared = event.get_datacontenttype() or content_type
        dataref = event.get_extension("dataref")
    for attribute, text in (("id", media_id), ("source", source), ("content type", declared)):
        if text is not None:
            _require_text(attribute, text, "bad_header" if event is None else "bad_event")
    trace = trace_of(headers, event)
    media = _media(media, dataref, settings)
    item = MediaItem(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        media_id=media_id,
        source=source,
        declared_type=declared,
        digest=hashlib.sha256(media).hexdigest(),
        size_bytes=len(media),
        traceparent=trace and trace.traceparent,
        tracestate=trace and trace.tracestate,
    )
    return item, media


def trace_of(headers: Headers, event: BaseCloudEvent | None = None) -> TraceContext | None:
    """Give the place in a trace that a record names, by its structured event where it has one."""
    extension = event and trace_context(event.get_extension(TRACEPARENT), event.get_extension(TRACESTATE))
    return extension or of_headers(headers, "ce_") or of_headers(headers, "ce-") or of_headers(headers)


def _media(inline: bytes | None, dataref: object, settings: IngestSettings) -> bytes:
    if inline or (inline is not None and dataref is None):
        if len(inline) > settings.max_media_bytes:
            raise EnvelopeError("too_large", f"{len(inline)} bytes; send more than the limit by dataref")
        return inline
    if dataref is None:
        raise EnvelopeError("null_value", "the record's value is null")
    if not isinstance(dataref, str):
        raise EnvelopeError("bad_event", "the dataref is no text")
    return fetch_claim(dataref, settings.claim_check_dir, settings.max_fetched_bytes)


def _event_headers(headers: Headers) -> dict[str, str]:
    """Keep the headers that an event is made of, as text, names in lower case; not those about a trace.

    A null header is an attribute that is not set: clients write one for each that they know.
    """
    named = {}
    # HTTP's form of a name, ce-id, is taken where Kafka's own, ce_id, is not there.
    for raw_name, raw in sorted(headers, key=lambda header: not header[0].lower().startswith("ce-")):
        name = re.sub("^ce-", "ce_", raw_name.lower())
        if raw is None or name in _OF_TRACES or (name != "content-type" and not name.startswith("ce_")):
            continue
        try:
            named[name] = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise EnvelopeError("bad_header", f"the header {name[:64]!r} is not UTF-8") from error
    return named


def _binary(named: dict[str, str]) -> BaseCloudEvent:
    # The library would make text or JSON of media that happens to look like it, so it gets no value.
    _check({name[3:]: text for name, text in named.items() if name.startswith("ce_")})
    raw = {name: text.encode() for name, text in named.items()}
    try:
        return from_binary_event(KafkaMessage(headers=raw, key=None, value=b""))
    # Here and below: attributes of the wrong type make the library fail in more ways than it names.
    except Exception as error:
        raise EnvelopeError("bad_event", f"not a valid CloudEvent: {printable(error)}") from error


def _looks_structured(value: bytes | None) -> bool:
    # No media file begins like this.
    return value is not None and value[:64].lstrip().startswith(b"{") and b'"specversion"' in value


def _read_structured(essence: str, value: bytes | None) -> tuple[BaseCloudEvent, bytes | None]:
    if essence not in (_STRUCTURED, _JSON):
        problem = f"no CloudEvents in {essence[:64]!r}, only in JSON, one by one"
        raise EnvelopeError("unsupported_format", problem)
    if value is None:
        raise EnvelopeError("null_value", "the record's value is null")
    try:
        document = json.loads(value.decode())
    except (ValueError, RecursionError) as error:
        raise EnvelopeError("bad_event", f"the value is no JSON document: {printable(error)}") from error
    if not isinstance(document, dict):
        raise EnvelopeError("bad_event", "the value is no JSON object")
    # The format allows null for what is not set; the library does not.
    given = {name: content for name, content in document.items() if content is not None}
    if (trace := trace_context(given.get(TRACEPARENT), given.get(TRACESTATE))) is None:
        given.pop(TRACEPARENT, None)
    if trace is None or trace.tracestate is None:
        given.pop(TRACESTATE, None)
    _check(given)
    try:
        text = value if len(given) == len(document) else json.dumps(given).encode()
        event = from_structured_event(KafkaMessage(headers={}, key=None, value=text))
    except Exception as error:
        raise EnvelopeError("bad_event", f"not a valid CloudEvent: {printable(error)}") from error
    media = event.get_data()
    if media is not None and not isinstance(media, bytes):
        raise EnvelopeError("no_media", "a structured event carries its media in data_base64")
    if media is None and event.get_extension("dataref") is None:
        raise EnvelopeError("no_media", "the event has neither data nor a dataref")
    return event, media


def _check(attributes: dict[str, Any]) -> None:
    """Refuse what the library would let through: it makes up a missing id, time or specversion."""
    version = attributes.get("specversion")
    if version is None:
        raise EnvelopeError("bad_event", "the event has no specversion")
    if version not in _SPECVERSIONS:
        text = repr(version[:64]) if isinstance(version, str) else f"of type {type(version).__name__}"
        raise EnvelopeError("unknown_specversion", f"a specversion {text} is not known")
    if not attributes.get("id"):
        raise EnvelopeError("bad_event", "the event has no id")


_first_of: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
_first_of_lock = threading.Lock()


def _source_of_bare(record: InRecord) -> str:
    """Return its header `source`, or its key where a record before it had the same, or the topic.

    A key that is one record's own names no source. Text is as databases and terminals take it.
    """
    raw = next((raw for name, raw in reversed(record.headers) if name.lower() == "source" and raw), None)
    if raw is None and record.key and _has_come_before(record, record.key):
        raw = record.key
    if raw is None:
        return record.topic
    text = raw.decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)[:_MAX_SOURCE_CHARS]


def _has_come_before(record: InRecord, key: bytes) -> bool:
    """Whether this process met the key in an earlier record; the same for a record that is opened again."""
    at, digest = (record.partition, record.offset), hashlib.sha256(key).digest()
    with _first_of_lock:
        first = _first_of.setdefault(digest, at)
        _first_of.move_to_end(digest)
        if len(_first_of) > _MOST_KEYS:
            _first_of.popitem(last=False)
    return first[0] != at[0] or first[1] < at[1]


def _require_text(attribute: str, text: str, reason: EnvelopeReason) -> None:
    if len(text) > _MAX_ATTRIBUTE_CHARS:
        raise EnvelopeError(reason, f"the {attribute} is longer than {_MAX_ATTRIBUTE_CHARS} characters")
    if match := _NO_TEXT.search(text):
        # CloudEvents 1.0.2, type system: a String has neither.
        code = f"U+{ord(match[0]):04X}"
        raise EnvelopeError(reason, f"the {attribute} holds {code}, a control character or a surrogate")


def fetch_claim(dataref: str, root: Path | None, max_bytes: int) -> bytes:
    """Read the file that a dataref names.

    dataref is a file: URL (file:///absolute/path, percent-encoding allowed); root is the folder
    that the file must lie in after every symbolic link is resolved; None refuses everything. It holds
    too against one who exchanges files, folders and links below the root meanwhile: the resolved path
    is walked from the root's descriptor, one part after the other, and no link is followed any more.

    Raises EnvelopeError: dataref_refused, dataref_missing, or too_large (more than max_bytes;
    the size is looked at before a byte is read, and again while a growing file is read).
    """
    top, parts = _path_below(dataref, root)
    try:
        descriptor = _open_below(top, parts)
    except FileNotFoundError as error:
        raise EnvelopeError("dataref_missing", "the dataref names no file") from error
    except OSError as error:
        raise EnvelopeError("dataref_refused", f"the dataref cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise EnvelopeError("dataref_refused", "the dataref names something that is no plain file")
        if status.st_size > max_bytes:
            raise EnvelopeError("too_large", f"{status.st_size} bytes; the limit is {max_bytes}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            media = file.read(max_bytes + 1)
    except OSError as error:
        raise EnvelopeError("dataref_refused", f"the dataref cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(media) > max_bytes:
        raise EnvelopeError("too_large", f"grew beyond the limit of {max_bytes} bytes while it was read")
    return media


def _path_below(dataref: str, root: Path | None) -> tuple[Path, tuple[str, ...]]:
    """The resolved root and the resolved path's parts below it: what the folders say at this moment."""
    if root is None:
        raise EnvelopeError("dataref_refused", "claim checks are off: no root folder is set")
    try:
        url = urlsplit(dataref)
        path = Path(os.fsdecode(unquote_to_bytes(url.path)))
    except ValueError as error:
        raise EnvelopeError("dataref_refused", "the dataref is no valid URL") from error
    if url.scheme != "file" or url.netloc not in ("", "localhost") or url.query or url.fragment:
        raise EnvelopeError("dataref_refused", "only file: URLs of this machine are fetched")
    if not path.is_absolute():
        raise EnvelopeError("dataref_refused", "the dataref's path is not absolute")
    try:
        resolved, top = path.resolve(), root.resolve()
    # ValueError: a path with a NUL, or with a surrogate that no file system has.
    except (OSError, RuntimeError, ValueError) as error:
        raise EnvelopeError("dataref_refused", "the dataref's path cannot be resolved") from error
    if not resolved.is_relative_to(top):
        raise EnvelopeError("dataref_refused", "the dataref lies outside the configured root")
    return top, resolved.relative_to(top).parts


def _open_below(top: Path, parts: tuple[str, ...]) -> int:
    """Open a file by its parts below a folder, none of them a link; give its descriptor. Raises OSError."""
    folder = os.open(top, _FOLDER)
    try:
        for part in parts[:-1]:
            below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        return os.open(parts[-1] if parts else ".", _FILE, dir_fd=folder)
    finally:
        os.close(folder)

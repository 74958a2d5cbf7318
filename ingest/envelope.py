"""Opens a record of the media topic: CloudEvents (Kafka binding 1.0.2, both modes) or bare media."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Literal

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary_event, from_structured_event
from cloudevents.core.exceptions import BaseCloudEventException

from ingest import claim_check
from ingest.records import MediaError, MediaItem
from ingest.settings import IngestSettings

EnvelopeReason = Literal[
    "null_value",
    "bad_header",
    "bad_event",
    "unknown_specversion",
    "unsupported_format",
    "no_media",
    "too_large",
    "dataref_refused",
    "dataref_missing",
]
Headers = Iterable[tuple[str, bytes | None]]

_STRUCTURED = "application/cloudevents"
_SPECVERSIONS = ("1.0", "0.3")
# Attributes travel on into the verdict, which must fit its topic.
_MAX_ATTRIBUTE_CHARS = 1024


class EnvelopeError(MediaError):
    """A record that carries no media in a form that is understood; reason is an EnvelopeReason."""


def open_envelope(
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
    headers: Headers,
    value: bytes | None,
    settings: IngestSettings,
) -> tuple[MediaItem, bytes]:
    """Take the media out of a record, fetching it where the record only refers to it.

    A content type of application/cloudevents… makes the value a structured event; otherwise a ce_…
    header makes the headers a binary event; otherwise the value is the media. Media in the record
    goes before a dataref beside it. Returns the item and its bytes, which may be empty.

    Raises EnvelopeError, with one clear reason.
    """
    named = _event_headers(headers)
    content_type = named.get("content-type")
    if content_type is not None and content_type.lower().startswith(_STRUCTURED):
        event, media = _structured(content_type, value)
    elif any(name.startswith("ce_") for name in named):
        event, media = _binary(named), value
    else:
        event, media = None, value
    if event is None:
        media_id, source, declared, dataref = None, topic, content_type, None
    else:
        media_id, source, declared = event.get_id(), event.get_source(), event.get_datacontenttype()
        dataref = event.get_extension("dataref")
    for attribute in (media_id, source, declared):
        if attribute is not None and len(attribute) > _MAX_ATTRIBUTE_CHARS:
            raise EnvelopeError("bad_event", f"an attribute is longer than {_MAX_ATTRIBUTE_CHARS} characters")
    media = _media(media, dataref, settings)
    item = MediaItem(
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
        media_id=media_id,
        source=source,
        declared_type=declared,
        digest=hashlib.sha256(media).hexdigest(),
        size_bytes=len(media),
    )
    return item, media


def _media(inline: bytes | None, dataref: object, settings: IngestSettings) -> bytes:
    if inline or (inline is not None and dataref is None):
        if len(inline) > settings.max_media_bytes:
            raise EnvelopeError("too_large", f"{len(inline)} bytes; send more than the limit by dataref")
        return inline
    if dataref is None:
        raise EnvelopeError("null_value", "the record's value is null")
    if not isinstance(dataref, str):
        raise EnvelopeError("bad_event", "the dataref is no text")
    try:
        return claim_check.fetch(dataref, settings.claim_check_dir, settings.max_fetched_bytes)
    except claim_check.ClaimCheckError as refused:
        raise EnvelopeError(refused.reason, str(refused)) from refused


def _event_headers(headers: Headers) -> dict[str, str]:
    """Keep the headers that an event is made of, as text, names in lower case.

    A null header is an attribute that is not set: clients write one for each that they know.
    """
    named = {}
    for raw_name, raw in headers:
        name = raw_name.lower()
        if raw is None or (name != "content-type" and not name.startswith("ce_")):
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
    except (BaseCloudEventException, ValueError) as error:
        raise EnvelopeError("bad_event", f"not a valid CloudEvent: {error}") from error


def _structured(content_type: str, value: bytes | None) -> tuple[BaseCloudEvent, bytes | None]:
    essence = content_type.lower().partition(";")[0].strip()
    if essence not in (_STRUCTURED, _STRUCTURED + "+json"):
        raise EnvelopeError(
            "unsupported_format", f"no CloudEvents in {essence[:64]!r}, only in JSON, one by one"
        )
    if value is None:
        raise EnvelopeError("null_value", "the record's value is null")
    try:
        document = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise EnvelopeError("bad_event", "the value is no JSON document") from error
    if not isinstance(document, dict):
        raise EnvelopeError("bad_event", "the value is no JSON object")
    if None in document.values():
        # The format allows null for what is not set; the library does not.
        document = {name: content for name, content in document.items() if content is not None}
        value = json.dumps(document).encode()
    _check(document)
    try:
        event = from_structured_event(KafkaMessage(headers={}, key=None, value=value))
    # Attributes of the wrong type make the library fail in more ways than it names.
    except Exception as error:
        raise EnvelopeError("bad_event", f"not a valid CloudEvent: {error}") from error
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
        raise EnvelopeError("unknown_specversion", f"specversion {str(version)[:64]!r} is not known")
    if not attributes.get("id"):
        raise EnvelopeError("bad_event", "the event has no id")

"""Reads and passes on W3C Trace Context (https://www.w3.org/TR/trace-context-2/), by its grammar.

What does not keep to it is dropped, as the recommendation says: it is never the fault of the item.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?", re.ASCII)
_KNOWN_FLAGS = 0x03
_KEY = r"[a-z0-9][a-z0-9_\-*/@]{0,255}"
_MEMBER = re.compile(rf"({_KEY})=[ -+\--<>-~]{{0,255}}[!-+\--<>-~]", re.ASCII)
_MAX_MEMBERS = 32
# What everyone must pass on at least. More is dropped: it would travel with every record of the item.
_MAX_STATE_CHARS = 512


@dataclass(frozen=True)
class TraceContext:
    """Where in a trace something happens: both fields as they are written; tracestate None: there is none."""

    traceparent: str
    tracestate: str | None = None

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return self.traceparent.split("-")[1]

    def headers(self, prefix: str = "") -> list[tuple[str, bytes]]:
        fields = ((TRACEPARENT, self.traceparent), (TRACESTATE, self.tracestate))
        return [(prefix + name, text.encode()) for name, text in fields if text is not None]


def trace_context(traceparent: object, tracestate: object = None) -> TraceContext | None:
    """Read the two fields as somebody sent them; None where the first is none.

    A traceparent of a later version is passed on in the version 00, the one that is known here, with the
    flags that it knows.
    """
    if not isinstance(traceparent, str) or (match := _PARENT.fullmatch(traceparent)) is None:
        return None
    version, trace, parent, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not int(trace, 16) or not int(parent, 16):
        return None
    known = flags if version == "00" else f"{int(flags, 16) & _KNOWN_FLAGS:02x}"
    return TraceContext(f"00-{trace}-{parent}-{known}", _state(tracestate))


def of_headers(headers: Iterable[tuple[str, bytes | None]], prefix: str = "") -> TraceContext | None:
    """Read a record's headers of these names; of one that comes twice, the last."""
    wanted = {prefix + name: name for name in (TRACEPARENT, TRACESTATE)}
    texts = {
        wanted[name.lower()]: raw.decode("ascii", "replace")
        for name, raw in headers
        if raw is not None and name.lower() in wanted
    }
    return trace_context(texts.get(TRACEPARENT), texts.get(TRACESTATE))


def _state(given: object) -> str | None:
    if not isinstance(given, str) or len(given) > _MAX_STATE_CHARS:
        return None
    members = [member for part in given.split(",") if (member := part.strip(" \t"))]
    keys = [match[1] for member in members if (match := _MEMBER.fullmatch(member))]
    if not members or len(members) > _MAX_MEMBERS or len(set(keys)) < len(members):
        return None
    return ",".join(members)

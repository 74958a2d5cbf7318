"""Templates to answers: the common values of each view, and the headers under which it is shown."""

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote, unquote

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined, Undefined
from markupsafe import Markup
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.client.pictures import sentence
from deploy.rollout_records import Plan

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_SENT = re.compile(r"(.+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LONGEST = 60
"""characters that are shown of what people wrote, where there is one line for it"""
_AGES = ((86_400, "d"), (3_600, "h"), (60, "min"))


class Secured:
    """Sends every answer with the policy: nothing is loaded but from here, nothing frames it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


def render(request: Request, template: str, context: Mapping[str, Any], status: int = 200) -> HTMLResponse:
    """A view as HTML. It is never stored: its content may be purged."""
    body = _environment().get_template(template).render(request=request, **context)
    return HTMLResponse(body, status, headers={"cache-control": "no-store"})


def wrote(text: str | None, longest: int = _LONGEST) -> Markup:
    """A text by a person or a producer: escaped, its direction kept to itself, cut where long.

    Control characters, which no browser shows, are written out.
    """
    clean = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text or "")
    if len(clean) <= longest:
        return Markup("<bdi>{}</bdi>").format(clean)
    return Markup('<bdi title="{}">{}…</bdi>').format(clean[:1000], clean[: longest - 1])


def file_name(media_id: str | None) -> str:
    """The name of the file in the id that `forgewatch send` makes; another producer's id as it is."""
    named = _SENT.fullmatch(media_id or "")
    return unquote(named[1]) if named else media_id or ""


def words(value: object) -> str:
    """A record's value, for people: lists and tables in commas, yes or no, a dash for nothing."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {words(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(words, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)


def _printable(value: object) -> object:
    """Let texts, numbers and plans into a view. Raises TypeError for Python's own representations."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Undefined | Plan):
        raise TypeError(f"a view would print a {type(value).__name__}")
    return value


def when(moment: datetime | int | None) -> Markup:
    """A moment, or its milliseconds since the epoch, in UTC; the script says it in the browser's own zone."""
    if moment is None:
        return Markup("–")
    utc = _utc(moment)
    now = datetime.now(UTC)
    text = f"{utc:%H:%M:%S}" if utc.date() == now.date() else f"{utc:%d %b %H:%M}"
    if utc.year != now.year:
        text = f"{utc:%Y-%m-%d %H:%M}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        utc.isoformat(timespec="seconds"), f"{utc:%Y-%m-%d %H:%M:%S} UTC", text
    )


def ago(moment: datetime | int | None) -> str:
    """How long ago, in its largest unit."""
    if moment is None:
        return "never"
    return f"{duration((datetime.now(UTC) - _utc(moment)).total_seconds())} ago"


def _utc(moment: datetime | int) -> datetime:
    return datetime.fromtimestamp(moment / 1000, UTC) if isinstance(moment, int) else moment.astimezone(UTC)


def duration(seconds: float) -> str:
    """A duration in its largest unit, rounded down."""
    for size, unit in _AGES:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def percent(share: float | None, digits: int = 0) -> str:
    """A fraction of 1 in percent."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def format_count(number: float) -> str:
    """A count with its thousands apart."""
    return f"{number:,}".replace(",", " ")


@cache
def static_files() -> dict[str, tuple[bytes, str]]:
    """The page's own files by name, each with its digest, by which a browser asks for it."""
    folder = resources.files("deploy.page") / "static"
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    return {name: (content, hashlib.sha256(content).hexdigest()[:16]) for name, content in files.items()}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("deploy.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.filters |= {
        "wrote": wrote,
        "words": words,
        "file_name": file_name,
        "when": when,
        "ago": ago,
        "duration": duration,
        "percent": percent,
        "counted": format_count,
        "sentence": sentence,
        "short": lambda digest: (digest or "")[:12],
        "segment": lambda text: quote(text, safe=""),
    }
    environment.globals["asset"] = lambda name: f"/page/static/{static_files()[name][1]}/{name}"
    return environment

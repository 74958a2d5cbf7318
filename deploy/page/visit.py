"""Who looks at the page, and what each view is framed by: the views to go to, and what waits in them."""

import getpass
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fastapi import HTTPException, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import func, select

from deploy.page.render import render
from deploy.records import PROPOSED
from deploy.releases.approval import fold
from deploy.server.services import Services
from memory.schema import exemplars


@dataclass(frozen=True)
class Visitor:
    """Whoever looks. said: their role in words; form_token: what each of their forms bears."""

    name: str
    said: str
    may_review: bool
    may_approve: bool
    may_admit: bool
    leaves: bool
    form_token: str


@dataclass(frozen=True)
class Entry:
    """A view to go to. waits: how much waits there for a person."""

    title: str
    href: str
    waits: int = 0


@dataclass(frozen=True)
class Frame:
    """What is around every view."""

    person: Visitor
    nav: tuple[tuple[str, tuple[Entry, ...]], ...]


def own_page(request: Request) -> None:
    """Raise HTTPException (403) where a form is sent by a page of another origin (a FastAPI dependency)."""
    origin = urlsplit(request.headers.get("origin", "")).netloc
    if request.method != "GET" and origin != request.headers.get("host"):
        raise HTTPException(403, "a page of another origin may send nothing here")


def visitor(request: Request) -> Visitor:
    """Who asks."""
    return Visitor(getpass.getuser(), "everybody here: no tokens are set", True, True, True, False, "")


def show(
    request: Request,
    services: Services,
    template: str,
    current: str,
    context: Mapping[str, Any],
    status: int = 200,
) -> HTMLResponse:
    """A view in its frame. current: the title of its entry."""
    return render(
        request, template, {"frame": frame(request, services), "current": current, **context}, status
    )


def frame(request: Request, services: Services) -> Frame:
    """The frame of whoever asks. Raises LedgerError and StoreUnavailableError."""
    releases = fold(services.ledger.events()).releases.values()
    undecided = sum(release.state in (*PROPOSED, "approved") for release in releases)
    with services.memory.read() as connection:
        unknown = connection.scalar(select(func.count()).where(exemplars.c.shelf == "unknown")) or 0
    running = sum(run.state in ("queued", "running") for run in services.runs.newest(5))
    person = visitor(request)
    return Frame(
        person,
        (
            (
                "Look",
                (
                    Entry("Now", "/"),
                    Entry("Verdicts", "/page/verdicts"),
                    Entry("Sources", "/page/sources"),
                    Entry("Dead letters", "/page/dead-letters"),
                    Entry("Try a file", "/page/try"),
                ),
            ),
            (
                "Decide",
                (
                    Entry("Clusters", "/page/clusters", unknown),
                    Entry("Updates", "/page/updates", running),
                    Entry("Releases", "/page/releases", undecided),
                ),
            ),
            (
                "Prove",
                (
                    Entry("Record", "/page/record"),
                    *([Entry("People", "/page/people")] if person.may_admit else []),
                ),
            ),
        ),
    )

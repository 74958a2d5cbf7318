"""The page's viewer, and the frame of each view: the views to go to, and pending counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from sqlalchemy import func, select

from deploy.access.guard import Access, person_of
from deploy.access.roles import PEOPLE
from deploy.page.render import render
from deploy.release_records import WAITING
from deploy.releases.standing import replay
from deploy.server.services import Services
from memory.estimate.audits import count_waiting
from memory.schema import exemplars

_OF_LOOPBACK = "no sign-in configured"


@dataclass(frozen=True)
class Viewer:
    """The person at the page. role: in words; form_token: it is in each of their forms."""

    name: str
    role: str
    may_review: bool
    may_approve: bool
    may_admit: bool
    leaves: bool
    form_token: str


@dataclass(frozen=True)
class NavigationEntry:
    """A view to go to. waits: how much waits there for a person."""

    title: str
    href: str
    waits: int = 0


@dataclass(frozen=True)
class PageContext:
    """The frame around every view."""

    person: Viewer
    nav: tuple[tuple[str, tuple[NavigationEntry, ...]], ...]


def visitor(request: Request) -> Viewer:
    """Who asks, as the gate before the view found."""
    access: Access = request.app.state.access
    person = person_of(request)
    roles = [role for role in PEOPLE if role in person.roles]
    return Viewer(
        name=person.name,
        role=_OF_LOOPBACK if person.by == "loopback" else ", ".join(roles),
        may_review=not person.roles.isdisjoint(PEOPLE[1:]),
        may_approve=not person.roles.isdisjoint(PEOPLE[2:]),
        may_admit="admin" in person.roles,
        leaves=person.by == "session",
        form_token=access.form_token(request),
    )


def show(
    request: Request,
    services: Services,
    template: str,
    current: str,
    context: Mapping[str, Any],
    status: int = 200,
) -> HTMLResponse:
    """A view in its frame. current: the title of its entry."""
    around = {"frame": frame(request, services), "current": current}
    return render(request, template, {**around, **context}, status)


def frame(request: Request, services: Services) -> PageContext:
    """The frame of the person who asks. Raises LedgerError and StoreUnavailableError."""
    releases = replay(services.ledger.events()).releases.values()
    undecided = sum(release.state in WAITING for release in releases)
    with services.memory.read() as connection:
        unknown = connection.scalar(select(func.count()).where(exemplars.c.shelf == "unknown")) or 0
        drawn = count_waiting(connection)
    running = sum(run.state in ("queued", "running") for run in services.runs.newest(5))
    person, needed = visitor(request), services.controller.view().needs_person
    nav = {
        "Monitor": (
            NavigationEntry("Overview", "/"),
            NavigationEntry("Verdicts", "/page/verdicts"),
            NavigationEntry("Sources", "/page/sources"),
            NavigationEntry("Accuracy", "/page/accuracy"),
            NavigationEntry("Dead letters", "/page/dead-letters"),
            *([NavigationEntry("Check a file", "/page/try")] if person.may_review else []),
        ),
        "Review and release": (
            NavigationEntry("Review queue", "/page/clusters", unknown),
            *([NavigationEntry("Quality sample", "/page/audit", drawn)] if person.may_review else []),
            NavigationEntry("Updates", "/page/updates", running),
            NavigationEntry("Releases", "/page/releases", undecided),
            NavigationEntry("Rollout", "/page/rollout", int(needed)),
        ),
        "Administration": (
            NavigationEntry("Audit log", "/page/record"),
            *([NavigationEntry("Users and tokens", "/page/people")] if person.may_admit else []),
        ),
    }
    return PageContext(person, tuple(nav.items()))

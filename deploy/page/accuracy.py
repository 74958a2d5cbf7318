"""Accuracy: the share of right verdicts by class and source, as the audit estimates it."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.page.visit import show
from deploy.releases.standing import replay
from deploy.server import accuracy as api
from deploy.server.services import Opened

router = APIRouter(route_class=GuardedRoute)

PERIODS = (1, 7, 28, 90)
"""days that can be chosen"""


@router.get("/page/accuracy", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_accuracy(
    request: Request, services: Opened, release: api.Digest = None, days: api.Days = 7
) -> HTMLResponse:
    """How accurate a release was in the last days; of the live one, unless said otherwise."""
    known = release is not None or replay(services.ledger.events()).live is not None
    context = {
        "report": api.get_accuracy(services, release, days) if known else None,
        "days": days,
        "periods": PERIODS,
        "of": f"release={release}&" if release else "",
        "weekly": services.memory_settings.audit_items,
    }
    return show(request, services, "accuracy.html.j2", "Accuracy", context)

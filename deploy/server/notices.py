"""The API on notices: how each webhook stands, and a notice to try them with."""

from fastapi import APIRouter

from deploy.access.guard import Actor, GuardedRoute
from deploy.access.roles import least
from deploy.notice_records import WebhookState
from deploy.server.services import Opened

router = APIRouter(tags=["notices"], route_class=GuardedRoute)


@router.get("/notices", openapi_extra=least("viewer"))
def list_webhooks(services: Opened) -> list[WebhookState]:
    """How each webhook stands: what it has taken, what waits, why the last try failed."""
    return services.notices.states()


@router.post("/notices/test", status_code=204, openapi_extra=least("admin"))
def test_webhooks(services: Opened, actor: Actor) -> None:
    """Have a notice sent to every webhook, after those that wait. It is an act of the record."""
    services.notices.test(actor)

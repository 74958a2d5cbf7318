"""The API on the rollout that goes on: how it stands, its items, and what people do with it."""

from typing import Annotated, Literal

import structlog
from fastapi import APIRouter, HTTPException, Query

from deploy.access.guard import Actor, GuardedRoute
from deploy.access.roles import least
from deploy.release_records import Release
from deploy.rollout_records import Act, Disagreement, Judge, RetractionView, RolloutView, Waive
from deploy.rollouts import moves
from deploy.server.releases import move, terms
from deploy.server.services import Opened

log = structlog.get_logger()
router = APIRouter(tags=["rollouts"], route_class=GuardedRoute)

Said = Annotated[str, Query(max_length=200, description="real, unknown, error, or a family")]
ByPerson = Literal["hold", "resume", "back to shadow", "extend"]


@router.get("/rollouts", openapi_extra=least("viewer"))
def get_rollout_view(services: Opened) -> RolloutView:
    """How the rollout that goes on stands: its step, its checks, both verdicts on the same items."""
    return services.controller.view()


@router.get("/rollouts/items", openapi_extra=least("viewer"))
def list_items(services: Opened, champion: Said, challenger: Said) -> list[Disagreement]:
    """The newest shared items of which the champion said this and the challenger that."""
    return services.controller.items(champion, challenger)


@router.get("/retractions", openapi_extra=least("viewer"))
def list_retractions(services: Opened) -> list[RetractionView]:
    """What is taken back, the oldest first, and how far; then what was, the newest first."""
    return services.retractions.view()


@router.post("/rollouts/turn", openapi_extra=least("approver"))
def turn(services: Opened, actor: Actor, body: Act, action: ByPerson) -> Release:
    """Hold the rollout at its step, let it go on, take it back to shadow, or give it more time, once."""
    turned = action, body.reason, actor, services.evidence
    return move(services, body.digest, lambda history: moves.by_person(history, body.digest, *turned))


@router.post("/rollouts/waive", openapi_extra=least("approver"))
def waive(services: Opened, actor: Actor, body: Waive) -> Release:
    """Take a check away, or leave a source out. 409 where you asked for the release's update."""
    here = terms(services)
    return move(services, body.digest, lambda history: moves.waive(history, body, actor, here))


@router.post("/rollouts/labels", openapi_extra=least("reviewer"))
def judge(services: Opened, actor: Actor, body: Judge) -> Release:
    """Say what shared items are on which the releases differ: real, or a family. 404 for another item.

    409 where you asked for the release's update, or proposed it.
    """
    if other := sorted(set(body.labels) - services.controller.disagreements()):
        raise HTTPException(404, f"{other[0][:300]} is no item of this rollout on which the releases differ")
    judged = body.digest, body.labels, actor, terms(services)
    return move(services, body.digest, lambda history: moves.judge(history, *judged))

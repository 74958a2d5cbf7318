"""Rollout: where the release on trial stands, what its checks show, and the forms by which a person acts."""

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.page.approvals import expected_rollout
from deploy.page.releases import given_as
from deploy.page.rollout_tables import links_of, rows_of, steps_of, table_of
from deploy.page.visit import Viewer, show, visitor
from deploy.release_records import TakeOut
from deploy.releases.four_eyes import own_part
from deploy.releases.standing import replay
from deploy.releases.trial import LABELS_WANTED
from deploy.rollout_records import Act, RolloutView, Trial, Waive
from deploy.rollouts.checks import ERROR, waivable
from deploy.rollouts.moves import past_rollouts
from deploy.server import releases
from deploy.server import rollouts as api
from deploy.server.services import Opened, Services
from memory.records import REAL

router = APIRouter(route_class=GuardedRoute)

_PAST, _DONE = 10, 12
"""How many are shown: rollouts that ended, and what was done in this one."""

Turn = Literal[api.ByPerson, "waive", "leave out", "roll back"]


@router.get("/page/rollout", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_rollout(request: Request, services: Opened) -> HTMLResponse:
    """The rollout that goes on; where there is none, what became of the last ones."""
    return _rollout(request, services)


@router.post("/page/rollout", response_class=Response, openapi_extra=least("approver"))
def turn(
    request: Request,
    services: Opened,
    do: Annotated[Turn, Form()],
    digest: Annotated[str, Form(max_length=64, description="the release on trial, as the page had it")] = "",
    reason: Annotated[str, Form(max_length=1000)] = "",
    check: Annotated[str, Form(max_length=300)] = "",
    source: Annotated[str, Form(max_length=1024)] = "",
) -> Response:
    """Hold it, let it go on, take it back, extend it, waive a check, leave a source out, roll it back."""
    request.state.again = lambda error, status: _rollout(
        request, services, {"reason": reason, "check": check, "source": source, "error": error}, status
    )
    actor, because = visitor(request).name, {"digest": digest, "reason": reason.strip()}
    if do == "roll back":
        releases.rollback(services, actor, given_as(TakeOut, **because))
    elif do == "waive":
        api.waive(services, actor, given_as(Waive, **because, check=check))
    elif do == "leave out":
        api.waive(services, actor, given_as(Waive, **because, check=source, of_source=True))
    else:
        api.turn(services, actor, given_as(Act, **because), do)
    return RedirectResponse("/page/rollout", 303)


def _rollout(
    request: Request, services: Services, typed: Mapping[str, str] | None = None, status: int = 200
) -> HTMLResponse:
    view = services.conductor.view()
    context: dict[str, Any] = {"view": view, "trial": view.trial, "reason": "", "check": "", "source": ""}
    context |= typed or {}
    context["retractions"] = services.retractions.view()
    if view.trial is None:
        context["past"] = _past(services)
    else:
        context |= _on_trial(services, view, view.trial, visitor(request))
    return show(request, services, "rollout.html.j2", "Rollout", context, status)


def _past(services: Services) -> list[dict[str, Any]]:
    events = services.ledger.events()
    known = replay(events).releases
    return [
        {
            "release": known[past.began.move.digest],
            "began": past.began,
            "plan": past.began.move.rollout and past.began.move.rollout.plan,
            "ended": past.ended,
            "rows": rows_of((past.ended.move.rollout.checks or ()) if past.ended.move.rollout else ()),
        }
        for past in islice(past_rollouts(events), _PAST)
        if past.ended is not None
    ]


def _on_trial(services: Services, view: RolloutView, trial: Trial, person: Viewer) -> dict[str, Any]:
    standing = replay(services.ledger.events())
    challenger, champion = standing.releases[trial.release], standing.releases[trial.champion]
    history = releases.get_release(services, trial.release).history
    minutes = (datetime.now(UTC) - trial.began).total_seconds() / 60
    began = max(number for number, entry in enumerate(history) if entry.action == "begin")
    known = champion.candidate.classes
    names, new = waivable(known[1:]), [name for name in challenger.candidate.classes if name not in known]
    return {
        "challenger": challenger,
        "steps": steps_of(trial, history[began:]),
        "turns": list(reversed(history[began:]))[:_DONE],
        "rows": rows_of(view.checks, expected_rollout(services, challenger), minutes),
        "table": table_of(view.table),
        "look": links_of(view.table, REAL, new),
        "failures": {
            "champion": sum(view.table.get(ERROR, {}).values()),
            "challenger": sum(row.get(ERROR, 0) for row in view.table.values()),
        },
        "waivable": [name for name in names if name not in trial.waived],
        "wanted": LABELS_WANTED,
        "asked": own_part(challenger, person.name, releases.terms(services)),
    }

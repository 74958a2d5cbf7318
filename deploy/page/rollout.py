"""Rollout: the state of the release on trial, its checks, and the forms by which a person acts."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.page.releases import expected_rollout, given_as
from deploy.page.render import percent
from deploy.page.visit import Viewer, show, visitor
from deploy.release_records import LedgerEntry, TakeOut
from deploy.releases.four_eyes import own_part
from deploy.releases.standing import replay
from deploy.releases.trial import LABELS_WANTED
from deploy.rollout_records import Act, Check, Expected, RolloutView, Trial, Waive
from deploy.rollouts.bets import bets_to_pass
from deploy.rollouts.checks import ERROR, waivable
from deploy.rollouts.moves import past_rollouts
from deploy.server import releases
from deploy.server import rollouts as api
from deploy.server.services import Opened, Services
from memory.records import REAL

_BAR_PX, _BAR_FROM, _BAR_TO = 200, -0.03, 0.12
"""An interval's bar: its width, and the shares at its ends."""


def steps_of(trial: Trial, history: Sequence[LedgerEntry]) -> list[dict[str, Any]]:
    """The steps of a rollout as they are shown. history: the release's moves since the rollout began."""
    began: dict[int, datetime] = {}
    for entry in history:
        if entry.action in ("begin", "back to shadow", "inconclusive"):
            began = {0: entry.at}
        elif entry.action == "step" and entry.rollout is not None and entry.rollout.step is not None:
            began[entry.rollout.step] = entry.at
    ends = {step - 1: at for step, at in began.items()}
    return [
        {
            "share": trial.plan.canary[step - 1] if step else trial.plan.shadow,
            "shadow": not step,
            "state": "done" if step < trial.step else "now" if step == trial.step else "next",
            "began": began.get(step),
            "ended": ends.get(step),
            "until": trial.since + timedelta(minutes=trial.plan.minutes) if step == trial.step else None,
        }
        for step in range(len(trial.plan.canary) + 1)
    ]


def rows_of(
    checks: Sequence[Check], expected: Sequence[Expected] = (), minutes: float = 0.0
) -> list[dict[str, Any]]:
    """Checks as they are shown, each with its interval's bar: where it begins, how wide it is, the bound.

    expected: by the evaluation. minutes: since the rollout began, from which follows how many more it takes.
    """
    by_check = {e.check: e for e in expected}

    def place(share: float) -> float:
        inside = min(max(share, _BAR_FROM), _BAR_TO)
        return round(_BAR_PX * (inside - _BAR_FROM) / (_BAR_TO - _BAR_FROM), 1)

    return [
        {
            "check": check,
            "from": min(_BAR_PX - 2.0, place(min(check.low, check.high))),
            "wide": max(2.0, abs(place(check.high) - place(check.low))),
            "bound": place(check.tolerated),
            "range": _share_range(check),
            "expected": by_check.get(check.name),
            "minutes_more": _minutes_more(check, minutes),
        }
        for check in checks
    ]


def _minutes_more(check: Check, minutes: float) -> float | None:
    """How long until a check passes, about, where its units go on as they came; None: no one can say."""
    if check.state not in ("undecided", "not measured") or check.share is None or not minutes:
        return None
    units = bets_to_pass(check.tolerated, round(check.share, 3))
    return None if units is None else max(1.0, (units - check.units) * minutes / check.units)


def _share_range(check: Check) -> str:
    low, high = percent(check.low, 1), percent(check.high, 1)
    return f"at times under {high}, at times over {low}" if check.has_changed else f"{low} to {high}"


def table_of(table: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Both verdicts on the same items: rows the champion's words, columns the challenger's."""
    last = {REAL: 0, "unknown": 1, ERROR: 3}
    called = {name for row in table.values() for name in row} | set(table)
    names = sorted(called, key=lambda name: (last.get(name, 2), name))
    return {
        "names": names,
        "rows": [
            (
                name,
                [(_cell(name, other), table[name].get(other, 0), items_path(name, other)) for other in names],
            )
            for name in names
            if name in table
        ],
    }


def _cell(champion: str, challenger: str) -> str:
    """The class of a cell's style."""
    if champion == challenger:
        return "h2"
    return "w1" if REAL in (champion, challenger) else ""


def links_of(
    table: Mapping[str, Mapping[str, int]], champion: str, others: Sequence[str]
) -> list[tuple[str, int, str]]:
    """The challenger's words for one of the champion's: word, count of items, and their address."""
    counts = table.get(champion, {})
    return [(name, counts[name], items_path(champion, name)) for name in others if counts.get(name)]


def items_path(champion: str, challenger: str) -> str:
    """The address of the items with these two words."""
    return "/page/rollout/items?" + urlencode({"champion": champion, "challenger": challenger})


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
    view = services.controller.view()
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
        "conflict": own_part(challenger, person.name, releases.terms(services)),
    }

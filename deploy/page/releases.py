"""Releases: proposals, the evidence for and against one, and the forms by which a person decides."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Form, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import BaseModel, ValidationError

from deploy.access.guard import GuardedRoute, answering
from deploy.access.roles import PEOPLE, identity_of, least
from deploy.access.tokens import SHARED
from deploy.page.clusters import picture_of
from deploy.page.visit import Viewer, show, visitor
from deploy.release_records import STATES, Approve, Because, Release, TakeOut
from deploy.releases.approval import expiries
from deploy.releases.artifacts import StoreError
from deploy.releases.evidence import EvidenceError
from deploy.releases.four_eyes import counting, lacking, objection, same_person
from deploy.releases.standing import LedgerState, replay
from deploy.rollout_records import Expected
from deploy.rollouts.checks import expected_of
from deploy.server import releases as api
from deploy.server.lineage import figures_of
from deploy.server.releases import Digest, labelled_by, terms
from deploy.server.services import Opened, Services
from memory.records import REAL
from updater.candidate.report import under_half
from updater.records import Evaluation, Performance


def approval_of(
    services: Services, release: Release, standing: LedgerState, person: Viewer
) -> Mapping[str, Any]:
    """The values of a release's view on its approval. Raises AccessError and StoreUnavailableError."""
    here, now = terms(services), datetime.now(UTC)
    given = {identity_of(approval.actor) for approval in counting(release, now)}

    def labelled_count(name: str) -> int:
        with suppress(StoreError, EvidenceError):  # then it cannot be approved, and the view says why
            return labelled_by(services, release, name)
        return 0

    def may(name: str) -> bool:
        kept_out = 0 if here.labellers else labelled_count(name)
        return identity_of(name) not in given and objection(release, name, kept_out, here, now) is None

    expired = expiries(standing, leaving=release.digest, live=release.digest, actor=person.name)
    mine = labelled_count(person.name)
    return {
        "objection": objection(release, person.name, mine, here, now),
        "labelled": mine,
        "approved": identity_of(person.name) in given,
        "lacking": lacking(release, here, now),
        "goes_live": identity_of(person.name) not in given and lacking(release, here, now) == 1,
        "needed": here.needed,
        "plan": here.plan,
        "expected": expected_rollout(services, release),
        "approvals": [(approval, approval.expires_at <= now) for approval in release.approvals],
        "others": [
            name for name in _approvers(services, now) if not same_person(name, person.name) and may(name)
        ],
        "expiring": [standing.releases[move.digest] for move in expired],
        "until": now + here.lasts,
        "four_eyes": here.four_eyes,
        "proxy": bool(services.access.settings.proxy_addresses),
    }


def expected_rollout(services: Services, release: Release) -> tuple[Expected, ...]:
    """Return the expected checks of its rollout, by its evaluation; none where that cannot be read."""
    with suppress(StoreError, EvidenceError):  # the view says why
        return expected_of(services.evaluations.of(release))
    return ()


def _approvers(services: Services, now: datetime) -> list[str]:
    """People with a token that lets them approve, the newest first."""
    with answering():
        entries = services.access.tokens.entries()
    good = [entry for entry in entries if entry.revoked_at is None and now < entry.expires_at]
    shared = [SHARED] if services.access.settings.token is not None else []
    return [entry.name for entry in good if entry.role in PEOPLE[2:]] + shared


Body = TypeVar("Body", bound=BaseModel)

router = APIRouter(route_class=GuardedRoute)

Decision = Literal["approve", "approve and take live", "take live", "reject", "roll back", "roll back to"]
_RELEASES, _FLIPS, _ITEMS = 50, 24, 12
"""How many are shown: releases of a page, changed names, and items behind a finding."""


@router.get("/page/releases", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_releases(
    request: Request, services: Opened, page: Annotated[int, Query(ge=1, le=10**6)] = 1
) -> HTMLResponse:
    """A page of the releases that were ever proposed, with AA and AF, the one that moved last first."""
    releases = api.list_releases(services)
    part = releases[(page - 1) * _RELEASES : page * _RELEASES]
    measured = {row.release.digest: row.figures for row in figures_of(services, part)}
    rows = [(release, measured.get(release.digest, {})) for release in part]
    context = {"rows": rows, "page": page, "of": -(-len(releases) // _RELEASES)}
    return show(request, services, "releases.html.j2", "Releases", context)


@router.get("/page/releases/{digest}", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_release(request: Request, services: Opened, digest: Digest) -> HTMLResponse:
    """One release: its gates, its figures beside the live one's, what it learnt from, who moved it."""
    return _release(request, services, digest)


@router.post("/page/releases/{digest}", response_class=Response, openapi_extra=least("approver"))
def decide(
    request: Request,
    services: Opened,
    digest: Digest,
    do: Annotated[
        Literal["approve", "approve and take live", "take live", "reject", "roll back", "roll back to"],
        Form(),
    ],
    evaluation_digest: Annotated[str, Form(max_length=64)] = "",
    ledger: Annotated[str, Form(max_length=64, description="as the form's page had it")] = "",
    finding: Annotated[list[str], Form(description="names of broken gates")] = [],  # noqa: B006  # FastAPI copies it
    why: Annotated[list[str], Form(description="for each finding, why it is accepted")] = [],  # noqa: B006  # FastAPI copies it
    unshown: Annotated[list[str], Form(description="names of gates that are not shown to hold")] = [],  # noqa: B006  # FastAPI copies it
    because: Annotated[str, Form(max_length=1000, description="why all of these are accepted")] = "",
    reason: Annotated[str, Form(max_length=1000)] = "",
    comment: Annotated[str, Form(max_length=1000)] = "",
) -> Response:
    """Approve, take live, reject or roll back; then the release again. A refusal keeps what was typed."""
    given = dict.fromkeys(unshown, because) | dict(zip(finding, why, strict=False))
    request.state.again = lambda error, status: _release(
        request, services, digest, reasons=given, reason=reason, error=error, status=status
    )
    actor = visitor(request).name
    match do:
        case "approve" | "approve and take live":
            wanted = given_as(
                Approve,
                evaluation_digest=evaluation_digest,
                accept={name: text.strip() for name, text in given.items() if text.strip()},
                ledger=ledger or None,
                promote=do != "approve",
                comment=comment.strip() or None,
            )
            api.approve(services, actor, digest, wanted)
        case "take live":
            api.promote(services, actor, digest)
        case "reject":
            api.reject(services, actor, digest, given_as(Because, reason=reason.strip()))
        case "roll back":
            api.rollback(services, actor, given_as(TakeOut, reason=reason.strip(), digest=digest))
        case "roll back to":
            for newer in _newer(replay(services.ledger.events()), digest):
                api.rollback(services, actor, given_as(TakeOut, reason=reason.strip(), digest=newer))
    return RedirectResponse(f"/page/releases/{digest}", 303)


def _newer(standing: LedgerState, digest: str) -> list[str]:
    """The releases that a rollback to this one takes out, the live one first."""
    if digest not in standing.live_history:
        return []
    return list(standing.live_history[standing.live_history.index(digest) + 1 :][::-1])


def given_as(kind: type[Body], **fields: object) -> Body:
    """Return a form's values, as the API takes them. Raises HTTPException (422) where it is none."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise HTTPException(422, f"{first['loc'][-1]}: {first['msg']}") from error


def _release(
    request: Request,
    services: Services,
    digest: str,
    *,
    reasons: Mapping[str, str] | None = None,
    reason: str = "",
    error: str | None = None,
    status: int = 200,
) -> HTMLResponse:
    detail = api.get_release(services, digest)
    standing = replay(services.ledger.events())
    evaluation, problem = _evaluation(services, detail)
    context: dict[str, Any] = {
        "release": detail,
        "means": STATES[detail.state],
        "findings": detail.candidate.findings,
        "reasons": reasons or {},
        "reason": reason,
        "is_live": standing.live is not None and standing.live.digest == digest,
        "on_trial": standing.trial is not None and standing.trial.release == digest,
        "previous": standing.previous,
        "newer": _newer(standing, digest),
        "live": standing.live,
        "problem": problem,
        "evaluation": evaluation,
        "pictures": {gate.name: _pictures(gate.items[:_ITEMS]) for gate in detail.candidate.findings},
        "approval": approval_of(services, detail, standing, visitor(request)),
        "error": error,
    }
    if evaluation is not None:
        context |= _evaluation_values(evaluation)
    return show(request, services, "release.html.j2", "Releases", context, status)


def _evaluation(services: Services, release: Release) -> tuple[Evaluation | None, str | None]:
    try:
        return services.evaluations.of(release), None
    except (StoreError, EvidenceError) as unread:
        return None, str(unread)


def _evaluation_values(evaluation: Evaluation) -> dict[str, Any]:
    """The view's values of an evaluation; those that an older one lacks are empty."""
    before, after = evaluation.before, evaluation.after
    flips = evaluation.flips
    return {
        "shares": [
            {"family": family, "after": now, "before": before.classes.get(family) if before else None}
            for family, now in after.classes.items()
        ],
        "confusion": _confusion(after),
        "roc": _curve(after),
        "roc_before": _curve(before) if before else "",
        "rejected": after.rejected,
        "flips": [{"flip": flip, "picture": picture_of(flip.exemplar)} for flip in flips.lost[:_FLIPS]]
        if flips
        else [],
        "all_flips": flips,
        "made_of": evaluation.made_of,
        "robustness": after.robustness,
        "weak": under_half(after.robustness),
    }


def _confusion(performance: Performance) -> dict[str, Any] | None:
    """Rows of the confusion matrix, in items, and the columns' names."""
    table = performance.confusion
    if not table:
        return None
    called = sorted({name for row in table.values() for name in row}, key=lambda name: (name != REAL, name))
    rows = []
    for family, row in table.items():
        items = sum(row.values())
        cells = [(name, row.get(name, 0), row.get(name, 0) / items if items else 0.0) for name in called]
        rows.append({"family": family, "items": items, "cells": cells})
    return {"called": called, "rows": rows}


def _curve(performance: Performance) -> str:
    """The ROC of rejection as points of an SVG's polyline, 200 wide and high."""
    points = performance.rejection_roc or ()
    return " ".join(f"{200 * p.familiar:.1f},{200 - 200 * p.forged:.1f}" for p in points)


def _pictures(items: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"id": item, "picture": picture_of(item)} for item in items]

"""The API on releases: updates, proposals, approvals, rollbacks and the files of artifacts."""

import secrets
from datetime import UTC, datetime, timedelta
from typing import Annotated

import structlog
from fastapi import APIRouter, HTTPException, Path, Query, Request
from fastapi.responses import StreamingResponse
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from deploy.access.guard import UNLIMITED, Actor, GuardedRoute, Who, answering
from deploy.access.roles import PEOPLE, least
from deploy.record.chain import Act
from deploy.release_records import Approve, Because, LedgerEntry, Release, ReleaseDetail, TakeOut
from deploy.releases import approval, metrics
from deploy.releases.four_eyes import ApprovalError, Terms, lacking, same_person, tie_of
from deploy.releases.ledger import Decide, Event, Move
from deploy.releases.publish import make_moves
from deploy.releases.standing import replay
from deploy.rollout_records import Plan
from deploy.server.services import Opened, Services
from detector.records import Rollout
from memory.labels import labelled_counts
from memory.schema import labels
from updater.candidate.outlook import outlook_of
from updater.records import Candidate, Outlook, UpdateRun

log = structlog.get_logger()
router = APIRouter(route_class=GuardedRoute)

Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the artifact's manifest.json")]
FileName = Annotated[str, Path(max_length=100, description="a file of the artifact, such as manifest.json")]


@router.get("/rollout", tags=["releases"], openapi_extra=least("viewer", "detector", "updater"))
def get_rollout(services: Opened) -> Rollout | None:
    """What every worker is to serve, by the ledger; null before the first approval."""
    return replay(services.ledger.events()).rollout(services.ledger.id)


@router.get("/releases", tags=["releases"], openapi_extra=least("viewer"))
def list_releases(services: Opened) -> list[Release]:
    """Every release that was ever proposed, the one that moved last first."""
    releases = replay(services.ledger.events()).releases.values()
    return sorted(releases, key=lambda release: release.sequence, reverse=True)


@router.get("/releases/{digest}", tags=["releases"], openapi_extra=least("viewer"))
def get_release(services: Opened, digest: Digest) -> ReleaseDetail:
    """One release with its history. Its evidence: /artifacts/{digest}/evaluation.json and model_card.md."""
    events = services.ledger.events()
    release = approval.find(events, digest)
    history = tuple(entry(event) for event in events if event.move.digest == digest)
    short = lacking(release, terms(services), datetime.now(UTC))
    return ReleaseDetail(**dict(release), history=history, lacking=short)


@router.get("/ledger", tags=["releases"], openapi_extra=least("viewer"))
def list_events(services: Opened) -> list[LedgerEntry]:
    """Who did what and when: every event, oldest first."""
    return [entry(event) for event in services.ledger.events()]


@router.post("/releases", tags=["releases"], status_code=201, openapi_extra=least("admin", "updater"))
def propose(services: Opened, actor: Actor, candidate: Candidate) -> Release:
    """Propose a candidate whose artifact was put here before. Doing it twice is the same as once.

    Its gates are computed anew from its evaluation's bytes; with one that does not hold it is proposed with
    findings. 409 where one is not as the candidate says, where its parent is not live, where the stored bytes
    differ, where it was rejected, or where items that it was made of were purged.
    """
    evidence = services.evidence(candidate.digest)
    requested_by = _requested_by(services, candidate)
    return move(
        services,
        candidate.digest,
        lambda history: approval.propose(history, candidate, evidence, services.updater, actor, requested_by),
    )


@router.post("/releases/{digest}/approve", tags=["releases"], openapi_extra=least("approver"))
def approve(services: Opened, actor: Actor, digest: Digest, body: Approve) -> ReleaseDetail:
    """Approve exactly these bytes; once enough people did their rollout begins, by the plan that they name.

    Every file of the artifact is read anew. 409 where one byte is not what was proposed, where you asked for
    its update, where it was proposed anew since you looked, where the release that it was compared with is no
    longer live, or where a finding lacks a reason. With `promote` false it is approved and no more.
    """
    evidence, now = services.evidence(digest), datetime.now(UTC)
    labelled = labelled_by(services, approval.find(services.ledger.events(), digest), actor)
    rules = (services.updater, actor, labelled, terms(services), now, _plan(services, body.plan))
    move(services, digest, lambda history: approval.approve(history, digest, body, evidence, *rules))
    return get_release(services, digest)


@router.post("/releases/{digest}/promote", tags=["releases"], openapi_extra=least("approver"))
def promote(services: Opened, actor: Actor, digest: Digest) -> Release:
    """Begin an approved release's rollout by its plan.

    409 where too few approvals count: they expire; and where items that it was made of were purged.
    """
    evidence, now = services.evidence(digest), datetime.now(UTC)
    rules = terms(services), now
    return move(services, digest, lambda history: approval.promote(history, digest, evidence, actor, *rules))


@router.post("/releases/{digest}/reject", tags=["releases"], openapi_extra=least("approver"))
def reject(services: Opened, actor: Actor, digest: Digest, body: Because) -> Release:
    """Refuse a proposed release, or one that is approved and not live, for good."""
    return move(services, digest, lambda history: approval.reject(history, digest, body.reason, actor))


@router.post("/rollback", tags=["releases"], openapi_extra=least("approver"))
def rollback(services: Opened, actor: Actor, body: TakeOut) -> Release:
    """Take the release on trial out, or the live one; answers with the one that answers everything now.

    What it answered is scored anew (/retractions), but where `retract` is false. 409 where the release that
    would come back was made of items that were purged.
    """

    def decide(history: tuple[Event, ...]) -> list[Move]:
        _, back = approval.to_take_out(history, body.digest)
        return approval.rollback(history, body, services.evidence(back.digest), actor)

    move(services, None, decide)
    live = replay(services.ledger.events()).live
    assert live is not None
    return live


@router.put(
    "/artifacts/{digest}/{name}",
    tags=["artifacts"],
    status_code=204,
    openapi_extra=least("admin", "updater"),
    max_body_size=UNLIMITED,
)
async def put_file(services: Opened, actor: Actor, digest: Digest, name: FileName, request: Request) -> None:
    """Put one file of an artifact as the raw body; manifest.json last, which verifies the whole.

    A file of an artifact that is complete already is taken and dropped. 413 over the size limit;
    422 where the artifact is not what its manifest says: put the named file and the manifest again.
    """
    with services.artifacts.upload(digest, name) as upload:
        async for chunk in request.stream():
            metrics.UPLOADED_BYTES.inc(len(chunk))
            await run_in_threadpool(upload.write, chunk)
        await run_in_threadpool(upload.commit)
    log.info("artifact file received", digest=digest, name=name, actor=actor)


@router.get(
    "/artifacts/{digest}/{name}",
    tags=["artifacts"],
    response_class=StreamingResponse,
    openapi_extra=least("viewer", "detector", "updater"),
)
def get_file(services: Opened, digest: Digest, name: FileName) -> StreamingResponse:
    """One file of a complete artifact; 404 while it is not complete."""
    stored = services.artifacts.read(digest, name)
    return StreamingResponse(
        stored.pieces, media_type="application/octet-stream", headers={"content-length": str(stored.size)}
    )


def terms(services: Services) -> Terms:
    """On which terms releases are approved here. Raises AccessError."""
    settings = services.access.settings
    with answering():
        given = services.access.tokens_given()
    return Terms(
        four_eyes=given is not None,
        needed=settings.approvals,
        labellers=settings.labellers_may_approve,
        lasts=timedelta(days=settings.approval_days),
        plan=settings.plan_of(None),
        given=given or (),
    )


def _plan(services: Services, text: str | None) -> Plan:
    try:
        return services.access.settings.plan_of(text)
    except ValueError as error:
        raise HTTPException(422, str(error)) from error


def labelled_by(services: Services, release: Release, actor: str) -> int:
    """How many labels a release learnt from of this person, or of one above or below them by tokens.

    Raises StoreError, EvidenceError and StoreUnavailableError.
    """
    made_of = services.evaluations.of(release).made_of
    if made_of is None:
        return 0
    given = terms(services).given
    with services.memory.read() as connection:
        actors = list(connection.scalars(select(labels.c.actor).distinct()))
        names = [name for name in actors if tie_of(name, actor, given) is not None]
        theirs = connection.scalars(select(labels.c.id).where(labels.c.actor.in_(names)))
        return sum(label in made_of.labels for label in theirs)


def _requested_by(services: Services, candidate: Candidate) -> str | None:
    """Who asked for the candidate's update, by its row; None where none is known or a schedule did.

    Raises ApprovalError where that was cancelled, or ended by a purge.
    """
    try:
        run = services.runs.get(candidate.update)
    except KeyError:
        return None
    if run.state == "refused":
        raise ApprovalError(f"its update ended as refused: {run.error}")
    return run.requested_by if run.trigger == "manual" else None


def move(services: Services, digest: str | None, decide: Decide) -> Release:
    """Let `decide` look at the ledger, append its moves and tell of them; returns the release that moved.

    digest: of the release to return; None: of the first that moved. Raises what `decide` and the ledger do.
    """
    appended = make_moves(services.ledger, services.publisher, decide)
    return approval.find(services.ledger.events(), digest or appended[0].move.digest)


def entry(event: Event) -> LedgerEntry:
    """An event of the ledger as the API shows it."""
    return LedgerEntry(**vars(event.move), sequence=event.sequence, at=event.at)


@router.get("/outlook", tags=["updates"], openapi_extra=least("viewer"))
def get_outlook(services: Opened) -> Outlook:
    """What an update of today's labels would rest on, and what it would and would not know."""
    with services.memory.read() as connection:
        return outlook_of(labelled_counts(connection))


@router.post("/updates", tags=["updates"], status_code=202, openapi_extra=least("reviewer"))
def request_update(services: Opened, actor: Actor) -> UpdateRun:
    """Ask for an update now. A runner takes it up; follow it at /updates/{id}."""
    slot = f"manual/{secrets.token_hex(8)}"
    # The run is in another database. So its request is on record first: none trains without one.
    services.record.append(Act(actor, "request update", slot))
    run, _ = services.runs.request(slot, "manual", actor)
    log.info("update requested", run=run.id, actor=actor)
    return run


@router.get("/updates", tags=["updates"], openapi_extra=least("viewer"))
def list_updates(services: Opened, limit: Annotated[int, Query(ge=1, le=1000)] = 20) -> list[UpdateRun]:
    """Update runs, the newest first."""
    return services.runs.newest(limit)


@router.get("/updates/{run}", tags=["updates"], openapi_extra=least("viewer"))
def get_update(services: Opened, run: int) -> UpdateRun:
    """One update run: its state, stage and progress, and why it ended as it did."""
    try:
        return services.runs.get(run)
    except KeyError as error:
        raise HTTPException(404, f"no update {run}") from error


@router.post("/updates/{run}/cancel", tags=["updates"], openapi_extra=least("reviewer"))
def cancel_update(services: Opened, who: Who, run: int, body: Because) -> UpdateRun:
    """End an update that waits or runs. Whoever asked for it may, and every approver.

    Who holds it stops at its next sign of life, and what it made is proposed no more. 409 where it has ended.
    """
    run_ = get_update(services, run)
    if not same_person(who.name, run_.requested_by) and not who.may(frozenset(PEOPLE[2:])):
        raise HTTPException(
            403, f"{run_.requested_by} asked for update {run}: they or an approver may cancel it"
        )
    if run_.state not in ("queued", "running"):
        raise HTTPException(409, f"update {run} has ended: {run_.state}")
    services.record.append(Act(who.name, "cancel update", f"update {run}", {"reason": body.reason}))
    services.runs.refuse(f"cancelled by {who.name}: {body.reason}", run)
    log.info("update cancelled", run=run, actor=who.name)
    return get_update(services, run)

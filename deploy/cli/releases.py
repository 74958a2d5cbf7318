"""Commands about releases: look at the evidence, approve, reject, roll back."""

import json
from typing import Annotated

import typer

from deploy.cli.output import (
    ActorOption,
    JsonFlag,
    client,
    print_json,
    print_table,
    say,
    short,
)
from deploy.records import Release
from detector.release.artifact import EVALUATION, MODEL_CARD

Digest = Annotated[str, typer.Argument(help="a release's digest, or its beginning")]
Reason = Annotated[str, typer.Option("--reason", help="why, for the record")]


def releases(as_json: JsonFlag = False) -> None:
    """List every release: its state, who moved it there, and why."""
    with client() as api:
        found = api.releases()
    if as_json:
        return print_json(found)
    print_table(
        "releases",
        ["release", "state", "since", "by", "classes", "reason"],
        [
            [short(r.digest), r.state, r.since, r.actor, ", ".join(r.candidate.classes), r.reason]
            for r in found
        ],
    )


def release(digest: Digest, as_json: JsonFlag = False) -> None:
    """Show a release's evidence: gates, evaluation report, model card, history."""
    with client() as api:
        detail = api.release(api.full_digest(digest))
        evaluation = json.loads(api.file(detail.digest, EVALUATION))
        card = api.file(detail.digest, MODEL_CARD).decode("utf-8", "replace")
    if as_json:
        return print_json({**detail.model_dump(mode="json"), "evaluation": evaluation, "model_card": card})
    say(card)
    print_table(
        f"gates of {short(detail.digest)} (compared with {short(detail.candidate.parent) or 'nothing'})",
        ["gate", "measured", "bound", "holds", "of"],
        [[g.name, g.value, g.bound, "yes" if g.holds else "NO", g.measured] for g in detail.candidate.gates],
    )
    print_table(
        "history",
        ["#", "at", "by", "action", "reason"],
        [[e.sequence, e.at, e.actor, e.action, e.reason] for e in detail.history],
    )
    say(
        f"digest      {detail.digest}\n"
        f"evaluation  {detail.candidate.evaluation_digest}\n"
        f"state       {detail.state}"
    )


def approve(digest: Digest, actor: ActorOption = None, as_json: JsonFlag = False) -> None:
    """Approve a proposed release and take it live. Binds the digests of exactly these bytes."""
    with client(actor) as api:
        detail = api.release(api.full_digest(digest))
        done = api.approve(detail.digest, detail.candidate.evaluation_digest)
    _show(done, as_json)


def reject(digest: Digest, reason: Reason, actor: ActorOption = None, as_json: JsonFlag = False) -> None:
    """Refuse a proposed release for good."""
    with client(actor) as api:
        done = api.reject(api.full_digest(digest), reason)
    _show(done, as_json)


def rollback(
    reason: Reason = "no reason given", actor: ActorOption = None, as_json: JsonFlag = False
) -> None:
    """Take the live release out and bring the one before it back."""
    with client(actor) as api:
        done = api.rollback(reason)
    _show(done, as_json)


def _show(done: Release, as_json: bool) -> None:
    if as_json:
        print_json(done)
    else:
        say(f"{short(done.digest)} is {done.state} (ledger #{done.sequence}, by {done.actor})")

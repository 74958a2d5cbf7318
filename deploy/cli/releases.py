"""Commands about releases: their evidence, decisions, rollback, signature, and `export` for other tools."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from deploy.cli.output import (
    ActorOption,
    CommandError,
    JsonFlag,
    UsageError,
    client,
    print_json,
    print_table,
    say,
    short,
    show_list,
    show_result,
)
from deploy.release_records import LedgerEntry, Release, ReleaseDetail
from deploy.rollout_records import Expected
from deploy.settings import DeploySettings
from detector.release.artifact import EVALUATION, MODEL_CARD
from updater.gate_records import Gate

if TYPE_CHECKING:
    from detector.release.artifact import Artifact


Digest = Annotated[str, typer.Argument(help="a release's digest, or its beginning")]
Reason = Annotated[str, typer.Option("--reason", help="why, for the record")]
Accept = Annotated[
    list[str] | None,
    typer.Option("--accept", metavar="FINDING=WHY", help="take a finding, with a reason; once for each"),
]


def releases(as_json: JsonFlag = False) -> None:
    """List every release: its state, who moved it there, and why."""
    with client() as api:
        columns: Any = {"state": "state", "since": "since", "by": "actor"}
        columns |= {"classes": lambda r: ", ".join(r.candidate.classes), "reason": "reason"}
        show_list(api.releases(), as_json, "releases", release=lambda r: short(r.digest), **columns)


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
        ["gate", "measured", "bound", "state"],
        [[g.name, g.format(".3f"), g.bound, g.status()] for g in detail.candidate.gates],
    )
    show_findings(detail.candidate.findings)
    if detail.state not in ("live", "retired"):
        _show_expected(_expected_rollout(evaluation))
    print_table(
        "history",
        ["#", "at", "by", "action", "reason"],
        [[e.sequence, e.at, e.actor, e.action, _why(e)] for e in detail.history],
    )
    if detail.approvals:
        print_table(
            "approvals since it was proposed",
            ["by", "at", "counts until", "labels of theirs in it", "who gave them and who asked a token"],
            [[a.actor, a.at, a.expires_at, a.labelled or "none", a.token_by or ""] for a in detail.approvals],
        )
    say(
        f"digest      {detail.digest}\n"
        f"evaluation  {detail.candidate.evaluation_digest}\n"
        f"asked for   by {detail.requested_by or 'nobody'}, proposed by {detail.proposed_by}\n"
        f"state       {detail.state}"
    )
    if detail.state == "approved":
        say(still_lacks(detail))


def approve(
    digest: Digest,
    accept: Accept = None,
    because: Annotated[
        str | None, typer.Option(help="take every gate that is not shown to hold, for this reason")
    ] = None,
    promote: Annotated[
        bool, typer.Option(" /--only", help="approve it and no more: `forgewatch promote` begins its rollout")
    ] = True,
    plan: Annotated[
        str | None,
        typer.Option(help="how it goes live, such as 25,5,25,100 or now; by default as the server is set"),
    ] = None,
    actor: ActorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Approve a proposed release and begin its rollout. Binds the digests of exactly these bytes.

    A release with findings needs a reason for each, by --accept "FINDING=WHY" or at the prompt; --because
    gives one for all findings that are not shown to hold, and for none that is broken. Once people have
    tokens, the requester of its update cannot approve it. An approval expires (7 days by default).
    """
    reasons = _reasons(accept or [])
    with client(actor) as api:
        detail = api.release(api.full_digest(digest))
        if because:
            open_ = [gate.name for gate in detail.candidate.findings if gate.state != "broken"]
            reasons = dict.fromkeys(open_, because) | reasons
        if not as_json and plan != "now":
            warn_of(_expected_rollout(json.loads(api.file(detail.digest, EVALUATION))))
        if sys.stdin.isatty() and not as_json:
            lacking = [finding for finding in detail.candidate.findings if finding.name not in reasons]
            show_findings(lacking)
            reasons |= asked_reasons(lacking)
        done = api.approve(detail, reasons, promote=promote, plan=plan)
    _show(done, as_json)
    if not as_json and done.state == "approved":
        say(f"it does not score yet: {still_lacks(done)}")


def promote(digest: Digest, actor: ActorOption = None, as_json: JsonFlag = False) -> None:
    """Begin an approved release's rollout, while its approvals count."""
    with client(actor) as api:
        done = api.promote(api.full_digest(digest))
    _show(done, as_json)


def still_lacks(release: ReleaseDetail) -> str:
    """The steps between an approved release and its first verdict, in words."""
    short_digest = short(release.digest)
    if not release.lacking:
        return f"`forgewatch promote {short_digest}` begins its rollout"
    return f"another person must approve it too (`forgewatch approve {short_digest}`)"


def reject(digest: Digest, reason: Reason, actor: ActorOption = None, as_json: JsonFlag = False) -> None:
    """Refuse a proposed release for good."""
    with client(actor) as api:
        done = api.reject(api.full_digest(digest), reason)
    _show(done, as_json)


def rollback(
    reason: Reason,
    digest: Annotated[
        str | None,
        typer.Argument(help="the release to take out; by default the one on trial, or the live one"),
    ] = None,
    retract: Annotated[
        bool, typer.Option(" /--keep-verdicts", help="keep its verdicts, and score nothing anew")
    ] = True,
    actor: ActorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Take the release on trial out, or the live one; the one before scores its verdicts anew."""
    with client(actor) as api:
        # What was looked at is taken out, and no other: a failed check may have been quicker.
        rollout = api.rollout()
        served = None if rollout is None else rollout.canary or rollout.stable
        out = api.full_digest(digest) if digest else served
        done = api.rollback(reason, out, retract=retract)
    _show(done, as_json)


def _expected_rollout(evaluation: object) -> Sequence[Expected]:
    """The checks that a release's rollout is expected to show, by its evaluation; none without one."""
    from pydantic import ValidationError

    from deploy.rollouts.checks import expected_of
    from updater.records import Evaluation

    try:
        return expected_of(Evaluation.model_validate(evaluation))
    except ValidationError:
        return ()


def _show_expected(expected: Sequence[Expected]) -> None:
    if not expected:
        return
    warn_of(expected)
    rows = []
    for check in expected:
        share = None if check.share is None else f"{check.share:.1%}"
        units = ("asks for labels" if check.asks else "NEVER") if check.units is None else check.units
        rows.append([check.check, share, check.items or None, f"{check.tolerated:.1%}", units])
    columns = ["check", "expected", "of items", "tolerated", "passes after units"]
    print_table("its rollout's expectations (a unit: 10 seconds of one source)", columns, rows)


def warn_of(expected: Sequence[Expected]) -> None:
    """Say which checks of the rollout are expected over their bounds, or can never pass."""
    for check in expected:
        if check.never and check.share is not None:
            near = f"{check.share:.1%} is too near to the tolerated {check.tolerated:.1%}"
            say(f"can never pass: {check.check}, {near}")
        if check.beyond and check.share is not None:
            say(f"expected over its bound: {check.check} {check.share:.1%}, tolerated {check.tolerated:.1%}")


def show_findings(findings: Sequence[Gate]) -> None:
    """Print each finding: its value with interval and n, its bound, items behind it, and the remedy."""
    for finding in findings:
        say(f"finding: {finding.name}: {finding.format('.4g')}, bound {finding.bound:g}, {finding.status()}")
        if finding.items:
            say(f"   behind it, the worst first: {' '.join(finding.items)}")
        if finding.mends:
            say(f"   {finding.mends}")


def asked_reasons(findings: Sequence[Gate]) -> dict[str, str]:
    """Ask at the terminal why each broken gate is accepted, and once for all that are not shown to hold."""
    reasons = {
        finding.name: typer.prompt(f"why do you accept {finding.name!r}?")
        for finding in findings
        if finding.state == "broken"
    }
    if open_ := [finding.name for finding in findings if finding.name not in reasons]:
        question = f"reason to accept the gates not shown to hold ({', '.join(open_)})?"
        reasons |= dict.fromkeys(open_, typer.prompt(question))
    return reasons


def _reasons(accept: Sequence[str]) -> dict[str, str]:
    reasons = {}
    for text in accept:
        name, _, why = (part.strip() for part in text.partition("="))
        if not name or not why:
            raise UsageError(f'--accept {text!r} is not FINDING=WHY, as "points of power lost=new reals"')
        reasons[name] = why
    return reasons


def _why(event: LedgerEntry) -> str | None:
    if not event.accepted:
        return event.reason
    return "; ".join(f"accepted {name}: {why}" for name, why in event.accepted.items())


def _show(done: Release, as_json: bool) -> None:
    line = f"{short(done.digest)} is {done.state} (ledger #{done.sequence}, by {done.actor})"
    show_result(done, as_json, line)


_SHOW = "show"


class _ShowByDefault(TyperGroup):
    """`forgewatch release DIGEST` is `forgewatch release show DIGEST`: no digest begins like a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "--help"):
            args = [_SHOW, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_ShowByDefault, help="Show a release's evidence, or write it for other tools.")
app.command(_SHOW)(release)


@app.command()
def export(
    digest: Digest,
    mlflow: Annotated[
        Path, typer.Option(metavar="DIR", help="folder of an MLflow registry, which is made where it lacks")
    ],
) -> None:
    """Write a release as a version of the MLflow model `forgewatch`, with the aliases of serving releases."""
    # Only here: it brings what reads artifacts.
    from deploy.client.mlflow import NAME
    from deploy.client.mlflow import export as write
    from detector.settings import DetectorSettings

    with client() as api:
        release = api.release(api.full_digest(digest))
        rollout = api.rollout()
    artifact = _fetch_release(release.digest, DetectorSettings().trusted_signers)
    version = write(artifact, mlflow, rollout, release.state)
    say(f"{short(release.digest)} is version {version} of the model {NAME} in {mlflow}")


@app.command()
def sign(
    digest: Digest,
    key: Annotated[Path, typer.Option(metavar="FILE", help="PEM file of the private key that signs it")],
) -> None:
    """Sign a release that was not signed, or whose signer is no longer to be trusted.

    Deploy replaces a signature where its own FORGEWATCH_DETECTOR_TRUSTED_SIGNERS has the key's certificate.
    """
    from detector.release.artifact import SIGNATURE
    from detector.release.signature import SigningKeyError
    from detector.release.signature import sign as write

    with client() as api:
        # Its signature may be the very thing that is wrong with it.
        artifact = _fetch_release(api.full_digest(digest), signers=None)
        try:
            write(artifact, key)
        except SigningKeyError as error:
            raise CommandError(str(error)) from error
        signature = (artifact.folder / SIGNATURE).read_bytes()
        api.put_signature(artifact.digest, signature)
        if api.file(artifact.digest, SIGNATURE) != signature:
            raise CommandError("deploy trusts no signer, so it keeps the signature that the release has")
    say(f"{short(artifact.digest)} is signed with {key}")


def _fetch_release(digest: str, signers: Path | None) -> "Artifact":
    from detector.release.manifest import ArtifactError
    from detector.serving.rollout_source import FetchError, fetch
    from detector.settings import DetectorSettings

    settings = DeploySettings()
    where = DetectorSettings().model_copy(
        update={"deploy_url": settings.url, "deploy_token": settings.token, "trusted_signers": signers}
    )
    try:
        return fetch(digest, settings.cache_dir, where)
    except (FetchError, ArtifactError) as error:
        raise CommandError(f"the release cannot be fetched: {error}") from error

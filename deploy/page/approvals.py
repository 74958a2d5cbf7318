"""Of a release that waits: who asked for it, who approved it, who may still, and what approving will do."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from deploy.access.guard import answering
from deploy.access.roles import PEOPLE, identity_of
from deploy.access.tokens import SHARED
from deploy.page.visit import Viewer
from deploy.release_records import Release
from deploy.releases.approval import expiries
from deploy.releases.artifacts import StoreError
from deploy.releases.evidence import EvidenceError
from deploy.releases.four_eyes import counting, lacking, objection, same_person
from deploy.releases.standing import LedgerState
from deploy.rollout_records import Expected
from deploy.rollouts.checks import expected_of
from deploy.server.releases import labelled_by, terms
from deploy.server.services import Services


def approval_of(
    services: Services, release: Release, standing: LedgerState, person: Viewer
) -> Mapping[str, Any]:
    """What the release's view says of its approval. Raises AccessError and StoreUnavailableError."""
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
    """Return what its rollout may show, by its evaluation; none where that cannot be read."""
    with suppress(StoreError, EvidenceError):  # the view says why
        return expected_of(services.evaluations.of(release))
    return ()


def _approvers(services: Services, now: datetime) -> list[str]:
    """Whoever has a token that lets them approve, the newest first."""
    with answering():
        entries = services.access.tokens.entries()
    good = [entry for entry in entries if entry.revoked_at is None and now < entry.expires_at]
    shared = [SHARED] if services.access.settings.token is not None else []
    return [entry.name for entry in good if entry.role in PEOPLE[2:]] + shared

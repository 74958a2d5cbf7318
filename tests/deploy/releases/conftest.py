"""A history of releases that grows wish by wish, by the same rules as the server's."""

import hashlib
from datetime import UTC, datetime, timedelta

import pytest

from deploy.release_records import Approve, TakeOut
from deploy.releases import approval
from deploy.releases.evidence import Evidence
from deploy.releases.four_eyes import ApprovalError, Terms
from deploy.releases.ledger import Event
from deploy.releases.standing import replay
from deploy.rollout_records import Plan
from updater.records import Candidate, Evaluation
from updater.settings import UpdaterSettings

CLASSES = ("real", "blend")
AT = datetime(2026, 1, 1, tzinfo=UTC)


class History:
    """Events, and what somebody may wish next. A wish that the rules refuse changes nothing."""

    def __init__(self, make_evaluation):
        self._make_evaluation = make_evaluation
        self._evaluations = {}
        self.bounds = UpdaterSettings()
        self.events = ()
        self.terms = Terms(
            four_eyes=True, needed=1, labellers=True, lasts=timedelta(days=7), plan=Plan.parse("now", 0, 0)
        )
        self.now = AT
        self.requested_by = None
        """who asks for the updates of what is proposed"""
        self.named = 0.9
        """of each family by the next candidate: too few are a finding"""

    def candidate(self, digest, parent):
        """The candidate of this digest as it was proposed, else one that was trained from `parent`."""
        if known := replay(self.events).releases.get(digest):
            return known.candidate
        evaluation = self._make_evaluation(CLASSES, parent, CLASSES if parent else (), named=self.named)
        written = evaluation.model_dump_json().encode()
        self._evaluations[digest] = written
        return Candidate(
            digest=digest,
            evaluation_digest=hashlib.sha256(written).hexdigest(),
            parent=parent,
            update=1,
            classes=CLASSES,
            gates=evaluation.gates,
        )

    def evidence(self, digest):
        """What lies in the store: the bytes of the candidate."""
        written = self._evaluations.get(digest, b"")
        evaluation_digest = hashlib.sha256(written).hexdigest()
        known = replay(self.events).releases.get(digest)
        parent = known.candidate.parent if known else None
        if not known and written:
            parent = Evaluation.model_validate_json(written).parent
        return Evidence(digest, evaluation_digest, parent, CLASSES, written, snapshot="5" * 64)

    def approve(self, digest, actor="ada", *, labelled=0, evidence=None, plan=None, **wanted):
        """What the rules answer to an approval of what lies in the store; wanted: fields of Approve."""
        found = self.evidence(digest)
        given = Approve(**{"evaluation_digest": found.evaluation_digest, "promote": False} | wanted)
        about = (self.bounds, actor, labelled, self.terms, self.now, plan)
        return approval.approve(self.events, digest, given, evidence or found, *about)

    def promote(self, digest, evidence=None):
        """What the rules answer to a wish to take a release live."""
        found = evidence or self.evidence(digest)
        return approval.promote(self.events, digest, found, "ada", self.terms, self.now)

    def moves(self, action, digest, parent=None):
        """What the rules answer to a wish; raises ApprovalError."""
        match action:
            case "propose":
                live = replay(self.events).live
                candidate = self.candidate(digest, parent or (live and live.digest))
                evidence = self.evidence(digest)
                about = (candidate, evidence, self.bounds, "updater", self.requested_by)
                return approval.propose(self.events, *about)
            case "approve":
                return self.approve(digest)
            case "promote":
                return self.promote(digest)
            case "reject":
                return approval.reject(self.events, digest, "no", "ada")
            case _:
                wanted = TakeOut(reason="worse")
                _, back = approval.to_take_out(self.events, None)
                return approval.rollback(self.events, wanted, self.evidence(back.digest), "ada")

    def wish(self, action, digest, parent=None):
        """Do it if the rules allow it; returns whether something was written."""
        try:
            moves = self.moves(action, digest, parent)
        except ApprovalError:
            return False
        self.force(*moves)
        return bool(moves)

    def force(self, *moves, at=None):
        """Write what no rule was asked about, now where nothing else is said."""
        for move in moves:
            number = len(self.events) + 1
            self.events = (*self.events, Event(number, at or self.now, move, f"{number:064x}"))


@pytest.fixture(scope="session")
def new_history(make_evaluation):

    def make(*wishes):
        history = History(make_evaluation)
        for wish in wishes:
            history.wish(*wish)
        return history

    return make


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.slow)])
def url(request, tmp_path):
    """Where a store of artifacts may lie."""
    return str(tmp_path / "store") if request.param == "folder" else request.getfixturevalue("bucket")

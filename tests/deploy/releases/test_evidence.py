"""A candidate's gates follow from its stored bytes."""

import hashlib
import json
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from deploy.release_records import Release
from deploy.releases.artifacts import ArtifactMissingError, ArtifactRefusedError, ArtifactStore
from deploy.releases.evidence import Evidence, EvidenceError, require_gates
from deploy.releases.four_eyes import ApprovalError
from deploy.releases.ledger import Move
from deploy.releases.standing import replay
from detector.release.artifact import MANIFEST, SIGNATURE
from detector.release.signature import sign
from memory.crops.object_store import ObjectStore
from tests.deploy.releases.test_artifacts import put
from updater.gate_records import Gate
from updater.records import Candidate
from updater.settings import UpdaterSettings

A, B = "a" * 64, "b" * 64
KNOWN, CLASSES = ("real", "blend", "noise"), ("real", "blend", "noise", "upsampling")


@pytest.fixture
def judge(make_evaluation):
    """Judges a child of release A that learnt a family. `bytes_say` are fields of its evaluation.json."""

    def run(bounds=None, gates=None, named=0.9, classes=CLASSES, **bytes_say):
        evaluation = make_evaluation(classes, A, KNOWN, named=named)
        written = json.dumps({**json.loads(evaluation.model_dump_json()), **bytes_say}).encode()
        candidate = Candidate(
            digest=B,
            evaluation_digest=hashlib.sha256(written).hexdigest(),
            parent=A,
            update=2,
            classes=classes,
            gates=evaluation.gates if gates is None else gates,
        )
        of_a = candidate.model_copy(update={"digest": A, "parent": None, "classes": KNOWN})
        live = Release(
            digest=A, state="live", candidate=of_a, since=datetime.now(UTC), actor="ada", sequence=3
        )
        evidence = Evidence(B, candidate.evaluation_digest, A, classes, written, snapshot=None)
        require_gates(candidate, evidence, live, bounds or UpdaterSettings())

    return run


def test_what_holds_by_its_own_bytes_passes(judge):
    judge()


def test_a_candidate_without_gates_is_refused(judge):
    with pytest.raises(EvidenceError, match="without gates"):
        judge(gates=())


def test_a_gate_that_does_not_hold_by_the_bytes_is_no_error_but_a_finding_for_a_person(judge):
    judge(named=0.4)


def test_a_gate_that_is_said_to_hold_and_does_not_by_the_bytes_is_refused(judge, make_evaluation):
    gates = make_evaluation(CLASSES, A, KNOWN, named=0.4).gates
    held = tuple(gate.model_copy(update={"holds": True, "mends": None}) for gate in gates)
    with pytest.raises(EvidenceError, match=r"says 0\.4 .*, holds, its evaluation gives 0\.4 .*, broken"):
        judge(gates=held, named=0.4)


def test_gates_that_the_bytes_do_not_give_are_refused(judge, make_evaluation):
    good = make_evaluation(CLASSES, A, KNOWN, named=0.9).gates
    with pytest.raises(EvidenceError, match=r"says 0\.9 .*, holds, its evaluation gives 0\.4 .*, broken"):
        judge(gates=good, named=0.4)
    with pytest.raises(EvidenceError, match="missing"):
        judge(gates=good[:-1])
    invented = Gate(name="looks nice", value=1, bound=1, holds=True)
    with pytest.raises(EvidenceError, match="'looks nice' does not follow"):
        judge(gates=(*good, invented))


def test_bounds_of_another_process_are_told_from_false_figures(judge):
    with pytest.raises(EvidenceError, match=r"bound 0\.5 in the updater and 0\.7 here.*FORGEWATCH_UPDATER_"):
        judge(bounds=UpdaterSettings(min_new_named=0.7))


def test_a_candidate_that_lost_a_family_of_the_live_release_is_refused(judge):
    with pytest.raises(EvidenceError, match="the live release knows blend, which it does not know"):
        judge(classes=("real", "noise", "upsampling"))


@pytest.mark.parametrize(
    ("bytes_say", "why"),
    [
        ({"before": None}, "does not compare it with the live release"),
        ({"parent": B}, "evaluation names another parent"),
        ({"classes": ["real", "upsampling", "blend", "noise"]}, "other classes"),
        ({"new": []}, "takes other classes for new"),
        ({"new": ["noise", "upsampling"]}, "takes other classes for new"),
        ({"after": {"classes": {}, "rejection_auroc": 1.0}}, "did not measure 'real'"),
        ({"after": None}, "no evaluation: after"),
    ],
)
def test_an_evaluation_of_something_else_is_refused(judge, bytes_say, why):
    with pytest.raises(EvidenceError, match=why):
        judge(**bytes_say)


# The store takes and shows what a trusted key signed, in a folder and in a real S3 server.
MAX_BYTES = 2**26


def signature_of(store, artifact):
    return b"".join(store.read(artifact.digest, SIGNATURE).pieces)


def signed(artifact, signer):
    sign(artifact, signer.key)
    return artifact


def test_a_signature_is_kept_beside_the_files_and_read_with_the_evidence(url, make_artifact, signer):
    store = ArtifactStore(url, MAX_BYTES, signer.certificate)
    artifact = signed(make_artifact(), signer)
    put(store, artifact, *artifact.manifest.files, SIGNATURE, MANIFEST)
    assert signature_of(store, artifact) == (artifact.folder / SIGNATURE).read_bytes()
    assert store.evidence(artifact.digest).digest == artifact.digest
    assert ObjectStore(url).names(".incoming") == []


@pytest.mark.bar("P1")
@pytest.mark.parametrize("how", ["not signed", "signed by another"])
def test_what_no_trusted_key_signed_is_not_taken_or_shown(url, make_artifact, signer, make_signer, bar, how):
    bar.count(2)
    store = ArtifactStore(url, MAX_BYTES, signer.certificate)
    artifact = make_artifact()
    if how == "signed by another":
        sign(artifact, make_signer().key)
        put(store, artifact, SIGNATURE)
    with pytest.raises(ArtifactRefusedError, match="signed" if how == "not signed" else "Key mismatch"):
        put(store, artifact)
    with pytest.raises(ArtifactMissingError):
        store.evidence(artifact.digest)
    # The control: a store that trusts nobody by name takes it, and shows it as evidence.
    without = ArtifactStore(url, MAX_BYTES)
    put(without, artifact)
    assert without.evidence(artifact.digest).digest == artifact.digest
    with pytest.raises(ArtifactRefusedError):
        store.evidence(artifact.digest)


def test_a_complete_artifact_is_signed_again_by_a_trusted_key_alone(url, make_artifact, signer, make_signer):
    artifact = make_artifact()
    without, store = ArtifactStore(url, MAX_BYTES), ArtifactStore(url, MAX_BYTES, signer.certificate)
    put(without, artifact)
    put(store, signed(artifact, signer), SIGNATURE)
    right = signature_of(store, artifact)
    assert store.evidence(artifact.digest).digest == artifact.digest
    sign(artifact, make_signer().key)
    with pytest.raises(ArtifactRefusedError, match="the signature is refused"):
        put(store, artifact, SIGNATURE)
    put(without, artifact, SIGNATURE)
    assert signature_of(store, artifact) == right


# A release with findings: it waits for a person, and goes live only with a reason for each.
DIGEST = "a" * 64


"""Makes a conftest.History of wishes."""

NAMED = "share of blend named"


@pytest.fixture
def with_findings(new_history):
    """A history in which DIGEST waits with a finding: too few of its family are named."""
    history = new_history()
    history.named = 0.1
    assert history.wish("propose", DIGEST)
    return history


def approved(history, accept):
    return history.approve(DIGEST, accept=accept)


def test_a_candidate_of_which_a_gate_does_not_hold_waits_as_proposed_with_findings(with_findings):
    release = replay(with_findings.events).releases[DIGEST]
    assert (release.state, [gate.name for gate in release.candidate.findings]) == (
        "proposed with findings",
        [NAMED],
    )
    assert with_findings.moves("propose", DIGEST) == []


def test_a_finding_without_a_reason_is_not_approved_and_the_line_names_it(with_findings):
    with pytest.raises(
        ApprovalError, match=rf'no reason was given for: {NAMED}: 0\.1.*--accept "{NAMED}=WHY"'
    ):
        approved(with_findings, {})
    with pytest.raises(ValidationError, match=NAMED):
        approved(with_findings, {NAMED: "  "})
    assert not with_findings.wish("promote", DIGEST)


def test_a_reason_for_what_is_no_finding_is_refused(with_findings, new_history):
    with pytest.raises(ApprovalError, match=f"'nonsense' is no finding .* its findings are '{NAMED}'"):
        approved(with_findings, {NAMED: "few items", "nonsense": "why"})
    with pytest.raises(ApprovalError, match="it has no findings"):
        approved(new_history(("propose", DIGEST)), {NAMED: "few items"})


def test_with_a_reason_for_each_finding_it_is_approved_and_the_move_keeps_them(with_findings):
    (move,) = approved(with_findings, {NAMED: "few items"})
    assert (move.actor, move.accepted) == ("ada", {NAMED: "few items"})
    with_findings.force(move)
    assert replay(with_findings.events).releases[DIGEST].state == "approved"
    assert with_findings.wish("promote", DIGEST)


@pytest.mark.parametrize("action", ["reject", "expire"])
def test_a_proposal_with_findings_may_be_refused_and_may_expire(with_findings, action):
    with_findings.force(Move("ada", action, DIGEST, "e" * 64))
    assert (
        replay(with_findings.events).releases[DIGEST].state
        == {"reject": "rejected", "expire": "expired"}[action]
    )

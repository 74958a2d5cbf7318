"""A candidate's gates follow from its stored bytes."""

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from deploy.release_records import Release
from deploy.releases.evidence import Evidence, EvidenceError, require_gates
from updater.gate_records import Gate
from updater.records import Candidate, Evaluation
from updater.settings import UpdaterSettings

A, B = "a" * 64, "b" * 64
KNOWN, CLASSES = ("real", "blend", "noise"), ("real", "blend", "noise", "upsampling")
Judge = Callable[..., None]


@pytest.fixture
def judge(make_evaluation: Callable[..., Evaluation]) -> Judge:
    """Judges a child of release A that learnt a family. `bytes_say` are fields of its evaluation.json."""

    def run(
        bounds: UpdaterSettings | None = None,
        gates: tuple[Gate, ...] | None = None,
        named: float = 0.9,
        classes: tuple[str, ...] = CLASSES,
        **bytes_say: Any,
    ) -> None:
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


def test_what_holds_by_its_own_bytes_passes(judge: Judge) -> None:
    judge()


def test_a_candidate_without_gates_is_refused(judge: Judge) -> None:
    with pytest.raises(EvidenceError, match="without gates"):
        judge(gates=())


def test_a_gate_that_does_not_hold_by_the_bytes_is_no_error_but_a_finding_for_a_person(judge: Judge) -> None:
    judge(named=0.4)


def test_a_gate_that_is_said_to_hold_and_does_not_by_the_bytes_is_refused(
    judge: Judge, make_evaluation: Callable[..., Evaluation]
) -> None:
    gates = make_evaluation(CLASSES, A, KNOWN, named=0.4).gates
    held = tuple(gate.model_copy(update={"holds": True, "mends": None}) for gate in gates)
    with pytest.raises(EvidenceError, match=r"says 0\.4 .*, holds, its evaluation gives 0\.4 .*, broken"):
        judge(gates=held, named=0.4)


def test_gates_that_the_bytes_do_not_give_are_refused(
    judge: Judge, make_evaluation: Callable[..., Evaluation]
) -> None:
    good = make_evaluation(CLASSES, A, KNOWN, named=0.9).gates
    with pytest.raises(EvidenceError, match=r"says 0\.9 .*, holds, its evaluation gives 0\.4 .*, broken"):
        judge(gates=good, named=0.4)
    with pytest.raises(EvidenceError, match="missing"):
        judge(gates=good[:-1])
    invented = Gate(name="looks nice", value=1, bound=1, holds=True)
    with pytest.raises(EvidenceError, match="'looks nice' does not follow"):
        judge(gates=(*good, invented))


def test_bounds_of_another_process_are_told_from_false_figures(judge: Judge) -> None:
    with pytest.raises(EvidenceError, match=r"bound 0\.5 in the updater and 0\.7 here.*FORGEWATCH_UPDATER_"):
        judge(bounds=UpdaterSettings(min_new_named=0.7))


def test_a_candidate_that_lost_a_family_of_the_live_release_is_refused(judge: Judge) -> None:
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
def test_an_evaluation_of_something_else_is_refused(
    judge: Judge, bytes_say: dict[str, Any], why: str
) -> None:
    with pytest.raises(EvidenceError, match=why):
        judge(**bytes_say)

"""What lies under a digest is what the digest says; a candidate's gates follow from its stored bytes."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deploy.releases import artifact_folder
from deploy.releases.artifact_folder import ArtifactFolder
from deploy.releases.artifacts import KEPT_S, ArtifactRefusedError, Evidence, EvidenceError, require_gates
from deploy.releases.records import Release
from detector.release.artifact import FILES, MANIFEST, WEIGHTS, Artifact, sha256_of
from updater.records import Candidate, Evaluation, Gate
from updater.settings import UpdaterSettings

Make = Callable[..., Artifact]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> ArtifactFolder:
    return ArtifactFolder(root, max_file_bytes=100_000)


def put(store: ArtifactFolder, artifact: Artifact, *names: str) -> None:
    for name in names or (*artifact.manifest.files, MANIFEST):
        with store.upload(artifact.digest, name) as upload:
            upload.write((artifact.folder / name).read_bytes())
            upload.commit()


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def bytes_below(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in folder.iterdir()}


def test_other_bytes_that_race_the_completion_of_an_artifact_are_never_served(
    store: ArtifactFolder, root: Path, make_artifact: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = make_artifact()
    put(store, artifact, *artifact.manifest.files)
    late = store.upload(artifact.digest, WEIGHTS)
    late.write(b"other bytes")
    real = artifact_folder.verify
    with ThreadPoolExecutor(1) as pool:

        def verify_and_be_overtaken(folder: Path, digest: str | None = None) -> Artifact:
            found = real(folder, digest)
            racing = pool.submit(late.commit)
            with pytest.raises(TimeoutError):  # it waits for the lock
                racing.result(0.2)
            return found

        monkeypatch.setattr(artifact_folder, "verify", verify_and_be_overtaken)
        put(store, artifact, MANIFEST)
    with late:
        pass
    assert bytes_below(root / artifact.digest) == bytes_below(artifact.folder)
    assert [path.name for path in (root / ".incoming").iterdir()] == [".lock"]


def test_uploads_of_one_artifact_at_once_end_in_one_that_is_whole(
    store: ArtifactFolder, root: Path, make_artifact: Make
) -> None:
    artifact = make_artifact()
    again = ArtifactFolder(root, max_file_bytes=100_000)  # as another process has it

    def attempt(number: int) -> None:
        try:
            put((store, again)[number % 2], artifact)
        except ArtifactRefusedError as refused:
            assert "not complete" in str(refused)  # noqa: PT017 - that it refuses at all is no promise

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(attempt, range(40)))
    assert bytes_below(root / artifact.digest) == bytes_below(artifact.folder)


@pytest.mark.parametrize("name", ["extra.html", "handler.py", "json.py", "Manifest.json", "", ".lock"])
def test_no_other_names_than_an_artifacts_are_taken(store: ArtifactFolder, root: Path, name: str) -> None:
    with pytest.raises(ArtifactRefusedError, match="no such file"):
        store.upload("a" * 64, name)
    assert [path.name for path in root.rglob("*") if path.is_file()] == [".lock"]


def test_an_upload_goes_on_after_a_restart(root: Path, make_artifact: Make) -> None:
    artifact = make_artifact()
    first, *rest = artifact.manifest.files
    put(ArtifactFolder(root, 100_000), artifact, first)
    put(ArtifactFolder(root, 100_000), artifact, *rest, MANIFEST)
    assert bytes_below(root / artifact.digest) == bytes_below(artifact.folder)


def test_what_no_release_names_is_collected_only_when_it_is_old(
    store: ArtifactFolder, root: Path, make_artifact: Make
) -> None:
    named, old, fresh = make_artifact(), make_artifact(), make_artifact()
    for artifact in (named, old, fresh):
        put(store, artifact)
    age(root / named.digest, KEPT_S + 60)
    age(root / old.digest, KEPT_S + 60)
    age(root / fresh.digest, KEPT_S - 60)
    assert store.collect({named.digest}) == [old.digest]
    assert sorted(path.name for path in root.iterdir()) == sorted([".incoming", named.digest, fresh.digest])


@pytest.mark.parametrize("use", ["evidence", "put"])
def test_an_artifact_that_a_proposal_is_about_to_name_is_not_collected(
    store: ArtifactFolder, root: Path, make_artifact: Make, use: str
) -> None:
    artifact = make_artifact()
    put(store, artifact)
    age(root / artifact.digest, KEPT_S + 60)
    if use == "put":
        put(store, artifact, WEIGHTS)
    else:
        store.evidence(artifact.digest)
    assert store.collect(set()) == []
    assert store.evidence(artifact.digest).digest == artifact.digest


def test_unfinished_uploads_are_collected_when_they_are_old(
    store: ArtifactFolder, root: Path, make_artifact: Make
) -> None:
    first, second = make_artifact(), make_artifact()
    put(store, first, WEIGHTS)
    put(store, second, WEIGHTS)
    crashed = store.upload(first.digest, MANIFEST)
    crashed.write(b"{")
    incoming = root / ".incoming"
    (part,) = incoming.glob(f"{first.digest}.*")
    for path in (incoming / first.digest, part, incoming / ".lock"):
        age(path, KEPT_S + 60)
    assert sorted(store.collect({first.digest, second.digest})) == sorted([first.digest, part.name])
    assert sorted(path.name for path in incoming.iterdir()) == [".lock", second.digest]
    crashed.__exit__(None, None, None)


def test_every_file_of_an_artifact_can_be_put(store: ArtifactFolder) -> None:
    for name in FILES - {MANIFEST}:
        with store.upload("a" * 64, name) as upload:
            upload.write(b"x")
            upload.commit()


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
        evidence = Evidence(B, candidate.evaluation_digest, A, classes, written)
        require_gates(candidate, evidence, live, bounds or UpdaterSettings())

    return run


def test_what_holds_by_its_own_bytes_passes(judge: Judge) -> None:
    judge()


def test_a_candidate_without_gates_is_refused(judge: Judge) -> None:
    with pytest.raises(EvidenceError, match="without gates"):
        judge(gates=())


def test_a_gate_that_does_not_hold_by_the_bytes_is_refused(judge: Judge) -> None:
    with pytest.raises(EvidenceError, match="these gates do not hold: share of upsampling named"):
        judge(named=0.4)


def test_gates_that_the_bytes_do_not_give_are_refused(
    judge: Judge, make_evaluation: Callable[..., Evaluation]
) -> None:
    good = make_evaluation(CLASSES, A, KNOWN, named=0.9).gates
    with pytest.raises(EvidenceError, match=r"says 0\.9, its evaluation gives 0\.4"):
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
        ({"before": None}, "does not compare it with what is live"),
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

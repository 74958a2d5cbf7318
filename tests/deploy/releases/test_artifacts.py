"""What lies under a digest is what the digest says: in a folder, and in a real S3 server."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import numpy as np
import pytest
from onnx import StringStringEntryProto, TensorProto, helper

from deploy.releases import artifacts
from deploy.releases.artifacts import (
    ArtifactMissingError,
    ArtifactRefusedError,
    ArtifactStore,
    ArtifactsUnavailableError,
    ArtifactTooLargeError,
)
from detector.release.artifact import DETECTOR, FILES, MANIFEST, SCANNER, WEIGHTS, seal
from memory.crops import object_store
from memory.crops.object_store import ObjectStore
from tests.deploy.conftest import small_model
from updater import limited_session
from updater.limited_session import GraphError, LimitedSession

MAX_BYTES = 2**26


@pytest.fixture
def store(url):
    return ArtifactStore(url, MAX_BYTES)


def put(store, artifact, *names):
    for name in names or (*artifact.manifest.files, MANIFEST):
        send(store, artifact.digest, name, (artifact.folder / name).read_bytes())


def send(store, digest, name, value):
    with store.upload(digest, name) as upload:
        upload.write(value)
        upload.commit()


def stored(store, digest, name):
    found = store.read(digest, name)
    value = b"".join(found.pieces)
    assert len(value) == found.size
    return value


def is_whole(store, artifact):
    names = (*artifact.manifest.files, MANIFEST)
    there = {name: (artifact.folder / name).read_bytes() for name in names}
    return there == {name: stored(store, artifact.digest, name) for name in names}


def test_an_artifact_is_there_with_its_manifest_and_not_before(store, url, make_artifact):
    artifact = make_artifact()
    put(store, artifact, *artifact.manifest.files)
    for ask in (store.evidence, lambda digest: store.read(digest, WEIGHTS)):
        with pytest.raises(ArtifactMissingError):
            ask(artifact.digest)
    put(store, artifact, MANIFEST)
    assert is_whole(store, artifact)
    assert store.evidence(artifact.digest).digest == artifact.digest
    assert ObjectStore(url).names(".incoming") == []


BRANCH = helper.make_graph([helper.make_node("Bernoulli", ["x"], ["y"])], "branch", [], [])
WEIGHT = TensorProto(name="w", data_location=1, external_data=[StringStringEntryProto(key="location")])
NODES = {
    "operator Loop": ("Loop", {"body": BRANCH}),
    "operator Bernoulli": ("If", {"then_branch": BRANCH}),
    "operator RandomNormal": ("RandomNormal", {"domain": "ai.onnx"}),
    "domain com.microsoft": ("Mul", {"domain": "com.microsoft"}),
    "a weight in another file": ("Abs", {}),
}


@pytest.mark.parametrize("graph", [DETECTOR, pytest.param(SCANNER, marks=pytest.mark.slow)])
@pytest.mark.parametrize("why", NODES)
def test_a_release_has_listed_operators_alone_in_each_of_its_graphs(request, tmp_path, graph, why):
    store, scans = ArtifactStore(str(tmp_path / "store"), MAX_BYTES), graph is SCANNER
    good = request.getfixturevalue("scanned_artifact" if scans else "make_artifact")
    put(store, artifact := good if scans else good())  # the updater's own graphs are taken
    folder, (kind, given) = shutil.copytree(artifact.folder, tmp_path / "other"), NODES[why]
    made = helper.make_graph([helper.make_node(kind, [], [], **given)], "g", [], [], [WEIGHT][bool(given) :])
    (folder / graph.model).write_bytes(helper.make_model(made).SerializeToString())
    with pytest.raises(ArtifactRefusedError, match=f"{graph.model} has .*{why}"):
        put(store, seal(folder, artifact.manifest))


LARGE = """most = ReduceMax<keepdims=0>(levels) brightest = Cast<to=7>(most) side = Mul(brightest, large)
    shape = Concat<axis=0>(side, large) zeros = ConstantOfShape(shape) ones = Cos(zeros)
    cost = ReduceMax<keepdims=0>(ones)"""
WHITE = LARGE.replace("Mul(brightest, large)", "Mul(at_white, large)").replace(
    "side =",
    "white = Constant<value_ints=[254]>() share = Div(brightest, white) at_white = Mul(share, large) side =",
)
LONG = """shape = Concat<axis=0>(large, large) zeros = ConstantOfShape(shape)
    most = ReduceMax<keepdims=0>(level) rows = Add(zeros, most)
    product = MatMul(rows, rows) cost = ReduceMax<keepdims=0>(product)"""


def costly(artifact, nodes):
    (artifact.folder / DETECTOR.model).write_bytes(small_model(len(artifact.manifest.classes), nodes))
    return seal(artifact.folder, artifact.manifest)


@pytest.mark.parametrize(("nodes", "deadline_s", "wall_s"), [(LARGE, 20, 60), (LONG, 20, 5), (WHITE, 0, 60)])
def test_a_release_that_does_not_answer_within_limits_is_refused_and_the_next_one_is_taken(
    tmp_path, make_artifact, monkeypatch, nodes, deadline_s, wall_s
):
    monkeypatch.setattr(limited_session, "_WALL_S", wall_s)
    monkeypatch.setattr(limited_session, "DEADLINE_S", deadline_s)
    store = ArtifactStore(str(tmp_path / "store"), MAX_BYTES)
    artifact = costly(make_artifact(), nodes)
    with pytest.raises(ArtifactRefusedError, match=r"^the release fails its trial: ") as refusal:
        put(store, artifact)
    assert "\n" not in str(refusal.value)
    with pytest.raises(ArtifactMissingError):
        store.evidence(artifact.digest)
    monkeypatch.undo()
    put(store, good := make_artifact())
    assert is_whole(store, good)


def test_a_graph_that_fails_at_one_picture_answers_for_the_next(make_artifact):
    artifact = costly(make_artifact(), LARGE)
    one = {"crops": np.zeros((1, 128, 128, 3), np.uint8), "pooling": np.ones((1, 1), np.float32)}
    with closing(LimitedSession(artifact, threads=1)) as session:
        for _ in range(2):
            with pytest.raises(GraphError):
                session.score({**one, "crops": one["crops"] + 200})
            assert session.score({**one, "crops": one["crops"] + 1})["novelty"] == 1


def test_a_large_artifact_goes_in_parts(store, make_artifact):
    small = make_artifact()
    (small.folder / WEIGHTS).write_bytes(bytes(range(256)) * (40 * 2**12))
    artifact = seal(small.folder, small.manifest)
    put(store, artifact)
    assert is_whole(store, artifact)
    assert store.evidence(artifact.digest).digest == artifact.digest


def test_a_file_over_the_limit_is_refused(url):
    store = ArtifactStore(url, 10)
    with store.upload("a" * 64, WEIGHTS) as upload:
        upload.write(b"x" * 10)
        with pytest.raises(ArtifactTooLargeError, match="10 bytes"):
            upload.write(b"x")
    assert ObjectStore(url).names() == []


def test_files_that_came_by_way_of_several_servers_make_one_artifact(store, url, make_artifact):
    artifact = make_artifact()
    for number, name in enumerate((*artifact.manifest.files, MANIFEST)):
        put(ArtifactStore(url, MAX_BYTES) if number % 2 else store, artifact, name)
    assert is_whole(store, artifact)


def test_other_bytes_are_refused_and_the_right_ones_taken_afterwards(store, make_artifact):
    artifact = make_artifact()
    put(store, artifact, *artifact.manifest.files)
    send(store, artifact.digest, WEIGHTS, b"other bytes")
    with pytest.raises(ArtifactRefusedError, match="not complete"):
        put(store, artifact, MANIFEST)
    with pytest.raises(ArtifactMissingError):
        store.read(artifact.digest, WEIGHTS)
    put(store, artifact, WEIGHTS, MANIFEST)
    send(store, artifact.digest, WEIGHTS, b"too late")
    assert is_whole(store, artifact)


def test_other_bytes_that_race_the_completion_of_an_artifact_never_serve(store, make_artifact, monkeypatch):
    artifact = make_artifact()
    put(store, artifact, *artifact.manifest.files)
    verify = artifacts.verify_signed

    def verify_and_be_overtaken(folder, digest, signers):
        verified = verify(folder, digest, signers)
        send(store, artifact.digest, WEIGHTS, b"other bytes")
        return verified

    with monkeypatch.context() as overtaken:
        overtaken.setattr(artifacts, "verify_signed", verify_and_be_overtaken)
        put(store, artifact, MANIFEST)
    assert is_whole(store, artifact)
    assert store.evidence(artifact.digest).digest == artifact.digest


def test_a_manifest_that_came_first_or_is_another_is_refused(store, make_artifact):
    artifact = make_artifact()
    for manifest in ((artifact.folder / MANIFEST).read_bytes(), b"{}", b""):
        with pytest.raises(ArtifactRefusedError, match="not complete"):
            send(store, artifact.digest, MANIFEST, manifest)
    with pytest.raises(ArtifactMissingError):
        store.evidence(artifact.digest)


def test_uploads_of_one_artifact_at_once_end_in_one_that_is_whole(store, url, make_artifact):
    artifact = make_artifact()
    again = ArtifactStore(url, MAX_BYTES)  # as another server has it

    def attempt(number):
        try:
            put((store, again)[number % 2], artifact)
        except ArtifactRefusedError as refused:
            assert "not complete" in str(refused)  # noqa: PT017 - that it refuses at all is no promise

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(attempt, range(12 if url.startswith("s3:") else 40)))
    assert is_whole(store, artifact)


def test_evidence_reads_every_byte_anew(store, url, make_artifact):
    artifact = make_artifact()
    put(store, artifact)
    ObjectStore(url).write(f"{artifact.digest}/{WEIGHTS}", b"other bytes")
    with pytest.raises(ArtifactRefusedError, match="damaged"):
        store.evidence(artifact.digest)
    ObjectStore(url).delete(f"{artifact.digest}/{WEIGHTS}")
    with pytest.raises(ArtifactRefusedError, match="damaged"):
        store.evidence(artifact.digest)


@pytest.mark.slow
def test_a_folders_artifacts_are_copied_into_a_bucket_as_they_are(bucket, make_artifact, tmp_path):
    artifact = make_artifact()
    folder, store = (ArtifactStore(url, MAX_BYTES) for url in (str(tmp_path / "store"), bucket))
    put(folder, artifact)
    for path in (tmp_path / "store" / artifact.digest).iterdir():
        ObjectStore(bucket).upload(path, f"{artifact.digest}/{path.name}")
    assert store.evidence(artifact.digest) == folder.evidence(artifact.digest)


@pytest.mark.parametrize("name", ["extra.html", "handler.py", "Manifest.json", "", "../x", ".used"])
def test_no_other_names_than_an_artifacts_are_taken(store, url, name):
    for digest, file in (("a" * 64, name), (".incoming", WEIGHTS), ("A" * 64, WEIGHTS)):
        with pytest.raises(ArtifactRefusedError):
            store.read(digest, file)
        with pytest.raises(ArtifactRefusedError), store.upload(digest, file):
            pass
    assert ObjectStore(url).names() == []
    for file in FILES - {MANIFEST}:
        send(store, "a" * 64, file, b"x")


def test_what_no_release_names_and_nobody_uses_is_collected_once_old(store, url, make_artifact, monkeypatch):
    named, old, unfinished, unfinished_named = (make_artifact() for _ in range(4))
    for artifact in (named, old):
        put(store, artifact)
    for artifact in (unfinished, unfinished_named):
        put(store, artifact, WEIGHTS)
    in_ledger = {named.digest, unfinished_named.digest}
    assert not store.collect(in_ledger), "none is old"
    # Ages in a listing of S3 are whole seconds, so that of now is over in at most two.
    monkeypatch.setattr(artifacts, "KEPT_S", 1)
    gone, deadline = store.collect(in_ledger), time.monotonic() + 120
    while len(gone) < 3:
        gone += store.collect(in_ledger)
        assert time.monotonic() < deadline
    assert sorted(gone) == sorted([old.digest, unfinished.digest, unfinished_named.digest])
    assert is_whole(store, named)
    left = {name.split("/")[-2] for name in ObjectStore(url).names() if "/" in name}
    assert left == {named.digest, ".used"}
    put(store, old)
    assert is_whole(store, old)


@pytest.mark.parametrize("use", ["evidence", "put"])
def test_an_artifact_that_is_used_while_it_is_collected_stays(store, url, make_artifact, monkeypatch, use):
    artifact = make_artifact()
    put(store, artifact)
    ObjectStore(url).delete(f".used/{artifact.digest}")
    found, long = ObjectStore.list_objects, timedelta(seconds=2 * artifacts.KEPT_S)

    def of_long_ago(self, below=""):
        return [object_store.ObjectInfo(item.name, item.modified - long) for item in found(self, below)]

    monkeypatch.setattr(ObjectStore, "list_objects", of_long_ago)
    # The listing says that it is old, but since then somebody has begun to propose it.
    if use == "put":
        put(store, artifact, WEIGHTS)
    else:
        store.evidence(artifact.digest)
    assert store.collect(set()) == []
    assert is_whole(store, artifact)
    ObjectStore(url).delete(f".used/{artifact.digest}")
    assert store.collect(set()) == [artifact.digest]  # the control


@pytest.mark.slow
def test_a_completion_that_breaks_off_is_never_served_and_is_redone(line, bucket, make_artifact, monkeypatch):
    monkeypatch.setattr(object_store, "CALL_S", 5.0)
    artifact = make_artifact()
    whole = ArtifactStore(bucket, MAX_BYTES)
    put(whole, artifact, *artifact.manifest.files)
    real, written = ObjectStore.upload, []

    def breaks_off(self, path, name):
        written.append(name)
        line.fails = len(written) in (1, 4, 8)
        real(self, path, name)

    monkeypatch.setattr(ObjectStore, "upload", breaks_off)
    failed = 0
    while True:
        try:
            put(whole, artifact, MANIFEST)
            break
        except ArtifactsUnavailableError:
            failed += 1
            line.fails = False
            with pytest.raises(ArtifactMissingError):
                whole.read(artifact.digest, WEIGHTS)
    assert failed == 3
    assert is_whole(whole, artifact)


@pytest.mark.parametrize("kind", ["folder", pytest.param("bucket", marks=pytest.mark.slow)])
def test_a_store_that_is_gone_holds_no_artifacts_and_lacks_none(kind, request, tmp_path):
    if kind == "bucket":
        there = ArtifactStore(request.getfixturevalue("bucket"), MAX_BYTES)
        gone, said = ArtifactStore("s3://no-such-bucket/x", MAX_BYTES), "no bucket no-such-bucket"
    else:
        there, gone = (ArtifactStore(str(tmp_path / name), MAX_BYTES) for name in ("there", "gone"))
        shutil.rmtree(tmp_path / "gone")
        said = f"the folder {tmp_path}/gone is gone"
    for act in (
        lambda: gone.evidence("a" * 64),
        lambda: gone.read("a" * 64, WEIGHTS),
        lambda: send(gone, "a" * 64, WEIGHTS, b"x"),
        lambda: gone.collect(set()),
    ):
        with pytest.raises(ArtifactsUnavailableError, match=r"bucket|is gone"):
            act()
    assert said in str(gone.hindrance())
    assert there.hindrance() is None


# Uploads of one artifact by way of two servers that share a folder.
def put_whole(store, artifact):
    for name in (*artifact.manifest.files, MANIFEST):
        with store.upload(artifact.digest, name) as upload:
            upload.write((artifact.folder / name).read_bytes())
            upload.commit()


def test_an_artifact_once_completed_leaves_what_another_server_takes_in(tmp_path, make_artifact, monkeypatch):
    artifact, copyfile = make_artifact(), shutil.copyfile
    store, again = (ArtifactStore(str(tmp_path / "store"), 2**26) for _ in range(2))
    completed = []

    def completed_meanwhile(path, aside):
        copyfile(path, aside)
        if not completed:
            completed.append(aside)
            put_whole(again, artifact)
            assert aside.is_file()

    monkeypatch.setattr(object_store.shutil, "copyfile", completed_meanwhile)
    put_whole(store, artifact)
    assert completed
    # Every byte is read anew.
    assert store.evidence(artifact.digest).digest == artifact.digest
    assert ObjectStore(str(tmp_path / "store")).names(f".incoming/{artifact.digest}") == []

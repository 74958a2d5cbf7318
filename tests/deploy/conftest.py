"""A deploy server without a broker, its settings in a folder of the test's own, and small artifacts."""

import itertools
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import uvicorn
from fastapi.testclient import TestClient

from deploy.app import create_app
from deploy.client.http import Client
from deploy.local.processes import free_port
from deploy.record.record import Record
from deploy.server.services import Services, open_services
from deploy.settings import DeploySettings
from detector.release.artifact import EVALUATION, MODEL, MODEL_CARD, PROBE, SNAPSHOT, WEIGHTS, Artifact, seal
from detector.release.contract import Contract, crops_and_pooling
from detector.release.manifest import Architecture, GateParameters, Manifest, Term
from detector.release.tensors import TensorSpec
from ingest.records import CropPlan
from updater.candidate.snapshot import made_of, pack_rows
from updater.evaluation_parts import SnapshotRow
from updater.records import Candidate, Evaluation


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeploySettings:
    """Settings of every package below the test's folder, in the environment, as a process gets them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORGEWATCH_INGEST_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("FORGEWATCH_DEPLOY_KAFKA_TIMEOUT_S", "0.2")
    monkeypatch.setenv("FORGEWATCH_DEPLOY_HEALTH_URLS", '{"detector": "http://127.0.0.1:1/metrics"}')
    monkeypatch.setenv("FORGEWATCH_DEPLOY_MAX_FILE_BYTES", "100000")
    monkeypatch.setattr("deploy.server.memory.MAX_PART_BYTES", 300_000)
    monkeypatch.setenv("FORGEWATCH_INGEST_MAX_FETCHED_BYTES", "100000")
    return DeploySettings()


@pytest.fixture
def without_triggers() -> Callable[[str], AbstractContextManager[sqlite3.Connection]]:
    """Opens a database, given its URL, as somebody has it who may change everything in it."""

    @contextmanager
    def opened(url: str) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        try:
            triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
            for (name,) in connection.execute(triggers).fetchall():
                connection.execute(f"DROP TRIGGER {name}")
            connection.execute("PRAGMA synchronous = OFF")
            yield connection
        finally:
            connection.close()

    return opened


@pytest.fixture
def services(settings: DeploySettings) -> Iterator[Services]:
    with open_services(settings) as opened:
        yield opened


@pytest.fixture
def http(settings: DeploySettings, services: Services) -> Iterator[TestClient]:
    """The API in this process, asked by an operator called ada."""
    with TestClient(
        create_app(settings, services),
        base_url="http://127.0.0.1:8700",
        headers={"X-Forgewatch-Actor": "ada"},
        raise_server_exceptions=False,
    ) as client:
        yield client


def outputs(classes: int) -> tuple[TensorSpec, ...]:
    """What a model of so many classes gives."""
    return tuple(
        TensorSpec(name=name, dtype=dtype, shape=("rows", *shape))
        for name, dtype, shape in (
            ("logits", "float32", (classes,)),
            ("embedding", "float32", (64,)),
            ("features", "float32", (0,)),
            ("energy", "float32", ()),
            ("novelty", "float32", ()),
            ("unknown_score", "float32", ()),
            ("neighbour_index", "int64", (0,)),
            ("neighbour_distance", "float32", (0,)),
        )
    )


@pytest.fixture
def served(settings: DeploySettings, services: Services) -> Iterator[str]:
    """The address of a real server of the API, in a thread of this process."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(create_app(settings, services), port=port, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        thread.join(0.02)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def make_artifact(tmp_path: Path, make_evaluation: Callable[..., Evaluation]) -> Callable[..., Artifact]:
    """Makes sealed artifacts whose model no one could run, a new one with each call.

    parent: the live one; rows: of its training snapshot, and without any it has none.
    """
    numbers = itertools.count()

    def make(
        parent: Artifact | None = None,
        new: tuple[str, ...] = (),
        rows: Sequence[SnapshotRow] = (),
        **figures: float,
    ) -> Artifact:
        number = next(numbers)
        folder = tmp_path / "made" / str(number)
        folder.mkdir(parents=True)
        for name in (MODEL, WEIGHTS, PROBE, MODEL_CARD):
            (folder / name).write_bytes(b"\x08\x0a" if name == MODEL else name.encode() * 10)
        known = parent.manifest.classes if parent else ()
        classes = (*(known or ("real", "blend")), *new)
        digest = parent.digest if parent else None
        evaluation = make_evaluation(classes, digest, known, seed=number, **figures)
        if rows:
            (folder / SNAPSHOT).write_bytes(pack_rows(rows))
            evaluation = evaluation.model_copy(update={"made_of": made_of(rows)})
        (folder / EVALUATION).write_text(evaluation.model_dump_json())
        unit = Term(median=0, scale=1, weight=1)
        gate = GateParameters(
            terms={"energy": unit, "pseudo": unit}, clip=4, unknown_threshold=1, fake_threshold=0.5
        )
        return seal(
            folder,
            Manifest(
                classes=classes,
                architecture=Architecture(backbone="lcnet_050", forensic=False),
                contract=Contract(inputs=crops_and_pooling(CropPlan()), outputs=outputs(len(classes))),
                feature_version=None,
                gate=gate,
                reference=(),
                parent=digest,
                calibration={},
                export_differences={},
            ),
        )

    return make


@pytest.fixture
def put(http: TestClient) -> Callable[[Artifact], None]:
    """Puts an artifact's files, the manifest last."""

    def put_all(artifact: Artifact) -> None:
        for name in (*artifact.manifest.files, "manifest.json"):
            content = (artifact.folder / name).read_bytes()
            answer = http.put(f"/artifacts/{artifact.digest}/{name}", content=content)
            assert answer.status_code == 204, answer.text

    return put_all


@pytest.fixture
def propose(
    http: TestClient, put: Callable[[Artifact], None], candidate_of: Callable[[Artifact], Candidate]
) -> Callable[[Artifact], None]:
    """Puts an artifact and proposes it."""

    def put_and_propose(artifact: Artifact) -> None:
        put(artifact)
        answer = http.post("/releases", json=candidate_of(artifact).model_dump(mode="json"))
        assert answer.status_code == 201, answer.text

    return put_and_propose


@pytest.fixture
def api(served: str) -> Iterator[Client]:
    with Client(DeploySettings(url=served), "ada") as client:
        yield client


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/deploy.sqlite"


@pytest.fixture
def record(url: str) -> Iterator[Record]:
    opened = Record(url)
    yield opened
    opened.close()

"""A deploy server without a broker, its settings in a folder of the test's own, and small artifacts."""

import itertools
import sqlite3
import threading
from contextlib import contextmanager

import onnx.parser
import pytest
import uvicorn
from fastapi.testclient import TestClient

from deploy.app import create_app
from deploy.client.http import Client
from deploy.local.processes import free_port
from deploy.record.record import Record
from deploy.server.services import open_services
from deploy.settings import DeploySettings
from detector.release.artifact import EVALUATION, MODEL, MODEL_CARD, PROBE, SNAPSHOT, WEIGHTS, seal
from detector.release.contract import Contract, crops_and_pooling
from detector.release.manifest import Architecture, GateParameters, Manifest, Term
from detector.release.tensors import TensorSpec
from ingest.records import CropPlan
from updater.candidate.snapshot import made_of, pack_rows


@pytest.fixture
def settings(tmp_path, monkeypatch):
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
def without_triggers():
    """Opens a database, given its URL, as somebody has it who may change everything in it."""

    @contextmanager
    def opened(url):
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
def services(settings):
    with open_services(settings) as opened:
        yield opened


@pytest.fixture
def http(settings, services):
    """The API in this process, asked by an operator called ada."""
    with TestClient(
        create_app(settings, services),
        base_url="http://127.0.0.1:8700",
        headers={"X-Forgewatch-Actor": "ada"},
        raise_server_exceptions=False,
    ) as client:
        yield client


def outputs(classes):
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


def small_model(classes, cost="cost = Identity(levels)"):
    """A model that gives these outputs, of its crops' mean level; cost: the nodes that make `cost`."""
    widths = {"logits": classes, "embedding": 64, "features": 0, "neighbour_distance": 0}
    sizes = [f"s{width} = Constant<value_ints=[1,{width}]>()" for width in {*widths.values()}]
    columns = [f"{name} = Expand(column, s{width})" for name, width in widths.items()]
    kinds = {"float32": "float", "int64": "int64"}
    gives = [f"{kinds[a.dtype]}[{', '.join(map(str, a.shape))}] {a.name}" for a in outputs(classes)]
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    small (uint8[crops, 128, 128, 3] crops, float[rows, crops] pooling) => ({", ".join(gives)}) {{
        pixels = Cast<to=1>(crops) of_crop = Constant<value_ints=[1, 2, 3]>()
        level = ReduceMean<keepdims=0>(pixels, of_crop) levels = MatMul(pooling, level)
        last = Constant<value_ints=[1]>() column = Unsqueeze(levels, last) {" ".join(sizes + columns)}
        novelty = Identity(levels) unknown_score = Identity(levels) neighbour_index = Cast<to=7>(features)
        large = Constant<value_ints=[9000]>() {cost} energy = Max(levels, cost)
    }}"""
    return onnx.parser.parse_model(text).SerializeToString()


@pytest.fixture
def served(settings, services):
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
def make_artifact(tmp_path, make_evaluation):
    """Makes sealed artifacts whose model says a mean level, a new one with each call.

    parent: the live one; rows: of its training snapshot, and without any it has none.
    """
    numbers = itertools.count()

    def make(parent=None, new=(), rows=(), **figures):
        number = next(numbers)
        folder = tmp_path / "made" / str(number)
        folder.mkdir(parents=True)
        for name in (WEIGHTS, PROBE, MODEL_CARD):
            (folder / name).write_bytes(name.encode() * 10)
        known = parent.manifest.classes if parent else ()
        classes = (*(known or ("real", "blend")), *new)
        (folder / MODEL).write_bytes(small_model(len(classes)))
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
def put(http):
    """Puts an artifact's files, the manifest last."""

    def put_all(artifact):
        for name in (*artifact.manifest.files, "manifest.json"):
            content = (artifact.folder / name).read_bytes()
            answer = http.put(f"/artifacts/{artifact.digest}/{name}", content=content)
            assert answer.status_code == 204, answer.text

    return put_all


@pytest.fixture
def propose(http, put, candidate_of):

    def put_and_propose(artifact):
        put(artifact)
        answer = http.post("/releases", json=candidate_of(artifact).model_dump(mode="json"))
        assert answer.status_code == 201, answer.text

    return put_and_propose


@pytest.fixture
def api(served):
    with Client(DeploySettings(url=served), "ada") as client:
        yield client


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/deploy.sqlite"


@pytest.fixture
def record(url):
    opened = Record(url)
    yield opened
    opened.close()

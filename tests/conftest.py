"""What tests of several rooms share."""

import os
import shutil
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import create_engine, text

from deploy.local.processes import free_port
from detector.release.artifact import Artifact
from updater.candidate.gates import make_gates
from updater.records import Candidate, Evaluation, Performance, Shares
from updater.settings import UpdaterSettings


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URL of a PostgreSQL server of these tests alone; it refuses to run as root, so `nobody` does."""
    pytest.importorskip("psycopg")
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    initdb = installed[-1] if installed else shutil.which("initdb")
    if initdb is None:
        pytest.skip("PostgreSQL is not installed")
    user = "nobody" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="forgewatch-postgres-", dir="/tmp"))
    if user:
        shutil.chown(folder, user)
    port = free_port()

    def run(program: str, *arguments: str) -> None:
        command = [Path(initdb).parent / program, "-D", folder / "data", *arguments]
        subprocess.run(command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)

    run("initdb", "--username=forgewatch", "--auth=trust", "--no-sync")
    options = f"-p {port} -h 127.0.0.1 -k {folder} -F"
    run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
    yield f"postgresql://forgewatch@127.0.0.1:{port}"
    run("pg_ctl", "-w", "-m", "immediate", "stop")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgresql_url(postgresql_server: str) -> str:
    """An empty schema of this test alone, as its URL: a hundred times quicker made than a database."""
    name = f"t{uuid.uuid4().hex}"
    engine = create_engine(f"{postgresql_server}/postgres")
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    engine.dispose()
    return f"{postgresql_server}/postgres?options=-csearch_path%3D{name}"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An SQLite file that is not there yet."""
    return f"sqlite:///{tmp_path}/rows.sqlite"


@pytest.fixture(params=["sqlite_url", "postgresql_url"])
def either_database(request: pytest.FixtureRequest) -> str:
    """An empty database: a test that uses it runs once on SQLite and once on PostgreSQL."""
    url: str = request.getfixturevalue(request.param)
    return url


pytest_plugins = [
    "localized_artifact",
    "logs",
    "longest_first",
    "published_weights",
    "s3_server",
    "scanned_artifact",
    "two_processes",
    "update_processes",
]
MakeEvaluation = Callable[..., Evaluation]


@pytest.fixture(scope="session")
def make_evaluation() -> MakeEvaluation:
    """Makes an evaluation: the live release knows `known`; `named` is the share of each family."""

    def judged(classes: tuple[str, ...], named: float) -> Performance:
        shares = {
            name: Shares(items=20, real=0.0, fake=named, unknown=1 - named, named=named) for name in classes
        }
        shares["real"] = Shares(items=20, real=0.98, fake=0.01, unknown=0.01, named=0.98)
        return Performance(classes=shares, rejection_auroc=0.9)

    def make(
        classes: tuple[str, ...] = ("real", "blend"),
        parent: str | None = None,
        known: tuple[str, ...] = (),
        *,
        named: float = 0.9,
        seed: int = 0,
    ) -> Evaluation:
        new = tuple(name for name in classes[1:] if name not in known)
        before = judged(classes, 0.9) if parent else None
        after = judged(classes, named)
        return Evaluation(
            update=1,
            parent=parent,
            backbone="lcnet_050",
            seed=seed,
            without_kinds=(),
            classes=classes,
            new=new,
            waiting={},
            items={},
            pseudo_forgeries=20,
            before=before,
            after=after,
            calibration={},
            export_differences={},
            gates=make_gates(UpdaterSettings(), classes, new, before, after),
        )

    return make


@pytest.fixture(scope="session")
def candidate_of() -> Callable[[Artifact], Candidate]:
    """Makes the candidate record of an artifact, as the updater does."""

    def candidate(artifact: Artifact) -> Candidate:
        evaluation = Evaluation.model_validate_json((artifact.folder / "evaluation.json").read_bytes())
        return Candidate(
            digest=artifact.digest,
            evaluation_digest=artifact.manifest.files["evaluation.json"],
            parent=artifact.manifest.parent,
            update=evaluation.update,
            classes=artifact.manifest.classes,
            gates=evaluation.gates,
        )

    return candidate


@pytest.fixture(scope="session")
def untrained_artifact(tmp_path_factory: pytest.TempPathFactory, make_evaluation: MakeEvaluation) -> Artifact:
    """A sealed release of three classes, right in form; its network was never trained."""
    # Torch takes seconds to import, and most tests do without it.
    import torch
    from safetensors.torch import save_file

    from detector.model.export import export, prove_equal
    from detector.model.graph import DetectorGraph, Reference
    from detector.model.network import Network
    from detector.release.architecture import FEATURE_VERSION, Architecture
    from detector.release.artifact import EVALUATION, MODEL, MODEL_CARD, PROBE, REFERENCE, WEIGHTS, seal
    from detector.release.contract import crops_and_pooling
    from detector.release.gate import GateParameters, Term
    from detector.release.graph_contract import write_probe
    from detector.release.manifest import Manifest, ReferenceEntry
    from detector.serving.session import Session
    from ingest.records import CropPlan

    folder = tmp_path_factory.mktemp("artifact")
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    network = Network(Architecture(backbone="lcnet_050", crop_px=64), 3).eval()
    assert network.forensics is not None
    scenes = rng.integers(0, 256, (40, 64, 64, 3), dtype=np.uint8)
    with torch.inference_mode():
        images = torch.from_numpy(scenes).permute(0, 3, 1, 2).float()
        output = network(images, torch.eye(len(images)))
    raw, embeddings = output.features.numpy(), output.embedding.numpy()
    mean, scale = raw.mean(0), raw.std(0) + 0.1
    whitening = np.diag(1 / scale).astype(np.float32)
    entries = tuple(ReferenceEntry(exemplar=f"exemplar-{i}", family="real") for i in range(len(raw)))
    reference = Reference(
        ((raw - mean) @ whitening).astype(np.float32),
        tuple(entry.exemplar for entry in entries),
        tuple(entry.family for entry in entries),
        mean,
        whitening,
        embeddings - embeddings.mean(0),
        embeddings.mean(0),
        np.eye(embeddings.shape[1], dtype=np.float32),
        ((raw - mean) @ whitening)[:, :30].astype(np.float32),
        whitening[:, :30],
        np.array([10, 20]),
    )
    gate = GateParameters(
        terms={
            "energy": Term(median=0, scale=1, weight=1),
            "pseudo": Term(median=0, scale=1, weight=1),
            "novelty": Term(median=10, scale=5, weight=2),
            "embedding_novelty": Term(median=1, scale=2, weight=2),
            "trace_novelty": Term(median=1, scale=2, weight=3),
        },
        clip=4,
        unknown_threshold=2,
        fake_threshold=0.5,
    )
    graph = DetectorGraph(network, gate, reference)
    contract = export(graph, crops_and_pooling(CropPlan(crop_px=64, patches=4)), folder / MODEL)
    asked = {"crops": scenes[:5], "pooling": np.full((2, 5), 0.2, np.float32)}
    one = {"crops": scenes[:1], "pooling": np.ones((1, 1), np.float32)}
    measured = prove_equal(graph, folder / MODEL, contract, [asked, one])
    save_file(network.state_dict(), folder / WEIGHTS)
    reference.save(folder / REFERENCE)
    write_probe(folder / PROBE, asked, Session(folder / MODEL, contract, threads=1).score(asked))
    classes = ("real", "blend", "upsampling")
    (folder / EVALUATION).write_text(make_evaluation(classes).model_dump_json())
    (folder / MODEL_CARD).write_text("Never trained.\n")
    return seal(
        folder,
        Manifest(
            classes=classes,
            architecture=network.architecture,
            contract=contract,
            feature_version=FEATURE_VERSION,
            gate=gate,
            reference=entries,
            parent=None,
            calibration={},
            export_differences=measured,
        ),
    )


class Collector:
    """A receiver of OTLP over HTTP, which decodes what is posted to /v1/traces."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                found = self.path == "/v1/traces"
                if found:
                    received.append(body)
                self.send_response(200 if found else 404)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def spans(self) -> list[SimpleNamespace]:
        """Every span that came; ids in hexadecimal, the parent's empty where there is none."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        return [
            SimpleNamespace(
                service=_attributes(resource.resource)["service.name"],
                trace=span.trace_id.hex(),
                id=span.span_id.hex(),
                parent=span.parent_span_id.hex(),
                state=span.trace_state,
                began_ns=span.start_time_unix_nano,
                ended_ns=span.end_time_unix_nano,
                failed=span.status.code == span.status.STATUS_CODE_ERROR,
                attributes=_attributes(span),
            )
            for body in self.received
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def _attributes(of: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in of.attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector of OpenTelemetry that runs."""
    opened = Collector()
    thread = threading.Thread(target=opened.server.serve_forever)
    thread.start()
    yield opened
    opened.server.shutdown()
    opened.server.server_close()
    thread.join()

import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import structlog
from handler_calls import Context
from hypothesis import given
from hypothesis import strategies as st
from poison import ENDLESS

from detector.handler import Handler
from detector.release import contract as contract_module
from detector.release.artifact import MODEL
from detector.release.contract import Contract, crops_and_pooling, request_for
from detector.release.crop_graphs import MapContract, ScanContract
from detector.release.tensors import (
    MOST_CROPS,
    REQUEST_TYPE,
    TensorsError,
    TensorSpec,
    beyond_tolerance,
    decode,
    differences,
    encode,
)
from detector.serving import session as session_module
from detector.serving.session import DeadlineError, Session, open_session
from detector.serving.torchserve_launch import prepare
from ingest import NO_TELEMETRY
from ingest.records import CropPlan, Decoded, Region


def item(crops, regions, px=2):
    pixels = np.random.default_rng(crops).integers(0, 256, (crops, px, px, 3), dtype=np.uint8)
    kept = tuple(Region("face", (0, 0, 8, 8), 0, None, rows) for rows in regions)
    return Decoded("image", "PNG", 100, 80, 1, pixels, kept)


@pytest.mark.slow
@given(
    st.lists(
        st.integers(1, 12).flatmap(
            lambda crops: st.tuples(
                st.just(crops), st.lists(st.integers(0, crops - 1).map(lambda only: (only,)), max_size=2)
            )
        ),
        min_size=1,
        max_size=12,
    )
)
def test_each_row_is_in_one_run_with_all_its_crops_and_at_most_one_item_too_many(untrained_artifact, shape):
    items = [item(crops, regions) for crops, regions in shape]
    pooling = request_for(items, untrained_artifact.manifest.contract)["pooling"]
    runs = [(rows, span) for rows, (span,) in contract_module._runs([pooling], 8)]
    assert sorted(np.concatenate([rows for rows, _ in runs])) == list(range(len(pooling)))
    largest = max(crops for crops, _ in shape)
    for rows, span in runs:
        np.testing.assert_allclose(pooling[rows, span].sum(1), 1, rtol=1e-6)
        assert span.stop - span.start <= max(8, largest)


def test_many_crops_score_as_they_do_all_at_once(untrained_artifact, monkeypatch):
    session, contract = open_session(untrained_artifact, threads=1), untrained_artifact.manifest.contract
    items = [item(crops, [(0, crops - 1)], contract.crop_plan.crop_px) for crops in (4, 3, 5, 9, 1, 1, 2)]
    request = request_for(items, contract)
    parts = session.score(request)
    monkeypatch.setattr(contract_module, "_RUN_CROPS", len(request["crops"]))
    at_once = session.score(request)
    assert beyond_tolerance(differences(parts, at_once)) == []
    turned_round = session.score({**request, "crops": request["crops"][::-1]})
    assert beyond_tolerance(differences(parts, turned_round)) != []


CROPS = np.zeros((2, 64, 64, 3), np.uint8)
POOLING = np.full((1, 2), 0.5, np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"crops": CROPS}, "expected crops, pooling; got crops"),
        ({}, "got nothing"),
        ({"crops": CROPS, "pooling": POOLING, "more": POOLING}, "more"),
        ({"crops": CROPS.astype(np.float32), "pooling": POOLING}, "crops is float32"),
        ({"crops": CROPS[:, :32, :32], "pooling": POOLING}, r"this model has uint8 \(crops, 64, 64, 3\)"),
        ({"crops": CROPS[:0], "pooling": POOLING[:, :0]}, "nothing to score"),
        ({"crops": CROPS, "pooling": POOLING[:0]}, "nothing to score"),
        ({"crops": CROPS, "pooling": POOLING[:, :1]}, "pooling is float32 .* crops 2"),
        ({"crops": CROPS, "pooling": POOLING[0]}, "pooling is float32"),
        ({"crops": CROPS, "pooling": POOLING.astype(np.float64)}, "pooling is float64"),
    ],
)
def test_a_request_that_is_not_as_the_contract_says_is_refused(untrained_artifact, request_, said):
    with pytest.raises(TensorsError, match=said):
        open_session(untrained_artifact, threads=1).score(request_)


def test_a_graph_that_is_not_the_one_of_the_contract_is_refused(untrained_artifact):
    contract = untrained_artifact.manifest.contract
    lacking = contract.model_copy(update={"outputs": contract.outputs[:-1]})
    with pytest.raises(TensorsError, match="its contract others"):
        Session(untrained_artifact.folder / MODEL, lacking, threads=1)


def test_a_graph_that_never_ends_is_stopped_and_the_next_request_answered(untrained_artifact, tmp_path):
    shutil.copytree(untrained_artifact.folder, folder := tmp_path / "endless")
    ENDLESS(folder)
    contract = untrained_artifact.manifest.contract
    session = Session(folder / MODEL, contract, threads=1, deadline_s=0.2)
    with pytest.raises(DeadlineError, match=r"0\.2 s"):
        session.score({"crops": CROPS + 255, "pooling": POOLING})
    request = {"crops": CROPS, "pooling": POOLING}
    unbounded = open_session(untrained_artifact, threads=1).score(request)
    assert beyond_tolerance(differences(session.score(request), unbounded)) == []


def test_without_a_gpu_it_runs_on_the_cpu_and_says_nothing(untrained_artifact):
    with structlog.testing.capture_logs() as said:
        session = open_session(untrained_artifact, threads=1)
    assert session._session.get_providers() == ["CPUExecutionProvider"]
    assert said == []


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this onnxruntime has CUDA"
)
def test_a_gpu_that_onnx_runtime_cannot_use_is_told_of_in_one_line_and_the_cpu_scores(untrained_artifact):
    contract = untrained_artifact.manifest.contract
    request = request_for([item(2, [], contract.crop_plan.crop_px)], contract)
    handler = Handler()
    with structlog.testing.capture_logs() as said:
        handler.initialize(Context(untrained_artifact.folder, REQUEST_TYPE, gpu=0))
    (line,) = said
    assert (line["event"], line["gpu"]) == ("the model runs on the CPU", 0)
    assert "has no CUDAExecutionProvider: onnxruntime-gpu in its place has it" in line["reason"]
    (answer,) = handler.handle([{"body": encode(request)}], Context(untrained_artifact.folder, REQUEST_TYPE))
    on_cpu = open_session(untrained_artifact, threads=1).score(request)
    assert beyond_tolerance(differences(decode(answer), on_cpu)) == []


def test_where_onnx_runtime_has_cuda_the_gpu_that_is_given_comes_before_the_cpu(monkeypatch):
    loaded = []
    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: both)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: loaded.append(True))
    assert session_module._providers(None) == ["CPUExecutionProvider"]
    assert loaded == []
    (name, own), last = session_module._providers(1)
    assert (name, own["device_id"], last) == ("CUDAExecutionProvider", "1", "CPUExecutionProvider")
    assert loaded == [True]


CONTRACT = Contract(
    inputs=crops_and_pooling(CropPlan(crop_px=1)),
    outputs=tuple(
        TensorSpec(name=name, dtype=dtype, shape=("rows",)) for name, dtype in contract_module._NEEDED.items()
    ),
)


class Graph:
    """Stands for a graph, and keeps how many crops each of its runs had."""

    def __init__(self):
        self.crops = []

    def __call__(self, names, feed):
        self.crops.append(len(feed["crops"]))
        return [np.zeros(len(feed["pooling"])) for _ in names]


def pooled(crops, *rows):
    """A request of so many crops, each row the mean of those from the first number up to the second."""
    pooling = np.zeros((len(rows), crops), np.float32)
    for row, (first, past) in enumerate(rows):
        pooling[row, first:past] = 1 / max(past - first, 1)
    return {"crops": np.zeros((crops, 1, 1, 3), np.uint8), "pooling": pooling}


ATTACKS = {
    "one item": pooled(1220, (0, 1220)),
    "rows that overlap": pooled(1220, *((i, i + 2) for i in range(1219))),
    "a row of nothing": pooled(1220, (0, 0)),
    "first and last": pooled(1220, (0, 1220), (0, 1), (1219, 1220)),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_more_crops_together_than_an_item_has_are_refused_before_anything_runs(attack):
    graph = Graph()
    with pytest.raises(TensorsError, match="1220 crops are pooled together: an item has at most 256"):
        CONTRACT.run_graph(graph, ATTACKS[attack])
    assert graph.crops == []


@pytest.mark.parametrize("attack", ATTACKS)
def test_without_the_bound_they_would_run_at_once(attack, monkeypatch):
    """The negative control of the test above."""
    monkeypatch.setattr(contract_module, "MOST_CROPS", 2000)
    graph = Graph()
    CONTRACT.run_graph(graph, ATTACKS[attack])
    assert max(graph.crops) == 1220


@given(
    st.integers(1, 1500).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(1, 400)), min_size=1, max_size=20),
        )
    )
)
def test_no_run_has_more_crops_than_an_item_can_have(shape):
    crops, rows = shape
    graph = Graph()
    try:
        answer = CONTRACT.run_graph(graph, pooled(crops, *((i, min(i + n, crops)) for i, n in rows)))
    except TensorsError:
        assert graph.crops == []
    else:
        assert max(graph.crops) <= MOST_CROPS
        assert len(answer["energy"]) == len(rows)


def test_as_many_crops_as_the_plan_gives_an_item_are_taken():
    plan = CropPlan(crop_px=1, frames=32)
    contract = CONTRACT.model_copy(update={"inputs": crops_and_pooling(plan)})
    assert (CONTRACT.most_of_item, contract.most_of_item) == (MOST_CROPS, 32 * (9 + 3 * 4))
    graph = Graph()
    contract.run_graph(graph, pooled(672, (0, 672)))
    assert graph.crops == [672]


def test_many_items_of_one_request_are_run_few_crops_at_a_time():
    graph = Graph()
    CONTRACT.run_graph(graph, pooled(1220, *((i, i + 1) for i in range(1220))))
    assert max(graph.crops) == contract_module._RUN_CROPS


def test_a_picture_of_too_many_crops_is_not_mapped_and_a_clip_of_too_many_frames_not_scanned():
    graph, crops = Graph(), np.zeros((257, 64, 64, 3), np.uint8)
    maps = MapContract(crop_px=64, threshold=0.5, reals_marked=0, reals=1)
    with pytest.raises(TensorsError, match="257 crops of one picture: at most 256 are mapped at once"):
        maps.run_graph(graph, {"crops": crops, "of_picture": np.zeros(257, np.int64)})
    scans = ScanContract(crop_px=64, threshold=0.4, reals_told=0, reals=20)
    with pytest.raises(TensorsError, match="257 frames of one clip: at most 96 are scanned"):
        scans.run_graph(graph, {"crops": crops})
    assert graph.crops == []


SECRETS = {"FORGEWATCH_DEPLOY_TOKEN": "hunter2", "AWS_SECRET_ACCESS_KEY": "hunter2", "PATH": "/bin"}


@pytest.fixture
def command(tmp_path):
    return prepare(
        tmp_path,
        port=8080,
        sockets=Path("/run/forgewatch"),
        model_store=tmp_path / "store",
        temporary=tmp_path,
        heap="-XX:MaxRAMPercentage=25",
        model_log=None,
        environment={**SECRETS, "FORGEWATCH_DETECTOR_MODEL_THREADS": "3"},
    )


def properties(folder):
    lines = (folder / "config.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_only_inference_is_on_the_network_and_only_on_loopback(command, tmp_path):
    said = properties(tmp_path)
    assert said["inference_address"] == "http://127.0.0.1:8080"
    assert said["management_address"] == "unix:/run/forgewatch/management.sock"
    assert said["metrics_address"] == "unix:/run/forgewatch/metrics.sock"
    assert {said[f"grpc_{what}_address"] for what in ("inference", "management")} == {"127.0.0.1"}


def test_nothing_but_the_model_store_can_be_loaded_from(command, tmp_path):
    said = properties(tmp_path)
    assert said["model_store"] == str(tmp_path / "store")
    assert (said["load_models"], said["allowed_urls"]) == ("", "file:///nonexistent/.*")
    assert (said["install_py_dep_per_model"], said["enable_envvars_config"]) == ("false", "false")


def test_the_workers_learn_the_number_of_threads_and_no_secret(command):
    assert command.environment["FORGEWATCH_DETECTOR_MODEL_THREADS"] == "3"
    assert "hunter2" not in command.environment.values()


def test_the_workers_libraries_do_not_report_to_their_makers(command):
    assert NO_TELEMETRY.items() <= command.environment.items()


def test_what_the_workers_print_goes_where_it_is_said(command, tmp_path):
    assert '<Console name="model">' in (tmp_path / "log4j2.xml").read_text()
    prepare(
        tmp_path,
        port=8080,
        sockets=tmp_path,
        model_store=tmp_path,
        temporary=tmp_path,
        heap="-Xmx1g",
        model_log=tmp_path / "model.log",
    )
    assert 'fileName="model.log"' in (tmp_path / "log4j2.xml").read_text()


def test_the_jvm_gets_its_heap_before_the_class_that_it_runs(command):
    said = command.arguments
    assert said.index("-XX:MaxRAMPercentage=25") < said.index("org.pytorch.serve.ModelServer")

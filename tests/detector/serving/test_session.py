import shutil

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
from detector.release.contract import request_for
from detector.release.tensors import REQUEST_TYPE, TensorsError, beyond_tolerance, decode, differences, encode
from detector.serving import session as session_module
from detector.serving.session import DeadlineError, Session, open_session
from ingest.records import Decoded, Region


def item(crops: int, regions: list[tuple[int, ...]], px: int = 2) -> Decoded:
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
def test_each_row_is_in_one_run_that_holds_all_its_crops_and_no_more_than_one_item_too_many(
    untrained_artifact, shape
):
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


def test_a_graph_that_never_ends_is_stopped_and_its_session_answers_the_next_request(
    untrained_artifact, tmp_path
):
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
    loaded: list[bool] = []
    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: both)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: loaded.append(True))
    assert session_module._providers(None) == ["CPUExecutionProvider"]
    assert loaded == []
    (name, own), last = session_module._providers(1)
    assert (name, own["device_id"], last) == ("CUDAExecutionProvider", "1", "CPUExecutionProvider")
    assert loaded == [True]

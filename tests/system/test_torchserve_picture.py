"""A release with an expert of whole pictures in a real TorchServe: it answers as its probe, within limits."""

from concurrent.futures import Future
from io import BytesIO

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from safetensors.torch import save_file

from deploy.local.torchserve import start_torchserve
from detector.batch import judge, open_batch
from detector.model.export import WithExperts, export_with_experts, prove_equal
from detector.model.graph import DetectorGraph
from detector.model.network import Network
from detector.release.artifact import EVALUATION, MODEL, MODEL_CARD, PROBE, WEIGHTS, seal, verify
from detector.release.contract import crops_and_pooling, picture_and_pooling, request_for
from detector.release.experts import LOGIT, PICTURES, CarriedExpert
from detector.release.manifest import Architecture, GateParameters, Manifest, Term
from detector.release.tensors import encode, write_probe
from detector.serving import torchserve_launch
from detector.serving.loading import pack
from detector.serving.rollout import Route
from detector.serving.session import Session, open_session
from detector.serving.shared_request import SharedRequests
from detector.serving.torchserve import RequestTooLargeError, TorchServe
from detector.settings import DetectorSettings
from detector.unknowns import decode
from ingest.records import CropPlan, Decoded, InRecord, PicturePlan
from ingest.sandbox.extract import extract
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system

SIDE = 224
INPUTS = (
    *crops_and_pooling(CropPlan(crop_px=64, patches=4, face_patches=0)),
    *picture_and_pooling(PicturePlan(width_px=SIDE, height_px=SIDE, interpolation="bicubic")),
)


def photograph(number):
    pixels = np.random.default_rng(number).integers(0, 256, (200, 300, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def mean_expert(path):
    """Write an expert whose logit is a picture's mean level over 128, less one."""
    nodes = [
        helper.make_node("Cast", [PICTURES], ["levels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["levels", "axes"], ["mean"], keepdims=0),
        helper.make_node("Div", ["mean", "half"], ["ratio"]),
        helper.make_node("Sub", ["ratio", "one"], [LOGIT]),
    ]
    constants = {"axes": np.array([1, 2, 3]), "half": np.float32(128), "one": np.float32(1)}
    graph = helper.make_graph(
        nodes,
        "expert",
        [helper.make_tensor_value_info(PICTURES, TensorProto.UINT8, ["n", SIDE, SIDE, 3])],
        [helper.make_tensor_value_info(LOGIT, TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return CarriedExpert(
        name="mean", input="resize", side_px=SIDE, digest="", checkpoint="", licence="Apache-2.0",
        median=0, scale=1, reals=1, sources=1, slope=1, offset=0
    )  # fmt: skip


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """An expert that reads the mean of the whole picture votes; everything is unknown to the gate."""
    folder = tmp_path_factory.mktemp("artifact")
    torch.manual_seed(0)
    architecture = Architecture(backbone="lcnet_035", crop_px=64, forensic=False, width=8)
    gate = GateParameters(
        terms={"energy": Term(median=0, scale=1, weight=1)}, clip=9, unknown_threshold=-9, fake_threshold=0.5
    )
    network = Network(architecture, 2).eval()
    expert = mean_expert(folder.parent / "expert.onnx")
    graph, files = DetectorGraph(network, gate, None, [expert]), {expert.name: folder.parent / "expert.onnx"}
    contract = export_with_experts(graph, INPUTS, files, folder / MODEL)
    items = [extract(photograph(number), contract.media_plan, 10**6) for number in range(3)]
    requests = [request_for(items, contract), request_for(items[:1], contract)]
    measured = prove_equal(WithExperts(graph, files), folder / MODEL, contract, requests)
    state = network.state_dict()
    save_file({name: value.contiguous() for name, value in state.items()}, folder / WEIGHTS)
    write_probe(folder / PROBE, requests[0], Session(folder / MODEL, contract, threads=1).score(requests[0]))
    (folder / EVALUATION).write_text("{}")
    (folder / MODEL_CARD).write_text("Never trained.\n")
    draft = Manifest(
        classes=("real", "fake"),
        architecture=architecture,
        contract=contract,
        feature_version=None,
        gate=gate,
        reference=(),
        parent=None,
        calibration={},
        export_differences=measured,
        experts=(expert,),
    )
    return verify(seal(folder, draft).folder)


def test_the_release_says_there_what_its_probe_says(client, artifact):
    assert max(client.probe(artifact).values()) < 1e-4


def test_a_full_batch_is_judged_within_the_request_limit_with_its_pictures(client, artifact):
    settings, sent = DetectorSettings(), []

    def score(to, request):
        sent.append(len(encode(request)))
        return client.predict(to, request)

    records = [InRecord("media", 0, i, 0, None, photograph(i), ()) for i in range(64)]
    with Sandbox(IngestSettings(decode_processes=1)) as sandbox:
        batch = open_batch(records, Route(artifact), sandbox, IngestSettings())
        judged = judge(batch, score, settings, 900_000)
    assert [one.error for one in judged] == [None] * 64
    assert len(sent) > 1
    assert max(sent) <= settings.max_request_bytes
    session = open_session(artifact, 1)
    for number, one in list(enumerate(judged))[::16]:
        assert one.unknown is not None
        assert one.verdict is not None
        item = extract(photograph(number), artifact.manifest.contract.media_plan, 10**6)
        message = decode(one.unknown)
        assert message.picture is not None
        np.testing.assert_array_equal(message.picture, item.pictures["picture"][0])
        here = session.score(request_for([item], artifact.manifest.contract))["logits"][0]
        fake = 1 / (1 + np.exp(here[0] - here[1]))
        assert one.verdict.fake_probability == pytest.approx(float(fake), abs=1e-4)


CROPS = 9


@pytest.fixture(scope="module")
def stock_settings(tmp_path_factory):
    lines = torchserve_launch._PROPERTIES.splitlines(keepends=True)
    stock = "".join(line for line in lines if not line.startswith("max_request_size"))
    assert stock != torchserve_launch._PROPERTIES
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchserve_launch, "_PROPERTIES", stock)
        server = start_torchserve(tmp_path_factory.mktemp("stock"))
    yield DetectorSettings(
        torchserve_url=server.inference_url,
        torchserve_management_url=server.management,
        model_store_dir=server.model_store,
    )
    server.stop()


@pytest.fixture(scope="module")
def stock_client(stock_settings, untrained_artifact):
    with TorchServe(stock_settings) as opened:
        opened._shared = SharedRequests(None)  # as where TorchServe is on another host
        pack(untrained_artifact, stock_settings.model_store_dir)
        opened.register(untrained_artifact)
        yield opened


class Decoding:
    """Crops of noise at once, in the place of the sandbox."""

    def submit(self, media, plan):
        crops = np.random.default_rng(list(media())).integers(0, 256, (CROPS, 64, 64, 3), dtype=np.uint8)
        future = Future()
        future.set_result(Decoded("image", "PNG", 64, 64, 1, crops, ()))
        return future


def test_a_request_beyond_the_limit_is_told_and_the_connection_stays(stock_client, untrained_artifact):
    for crops, fits in ((540, False), (500, True), (540, False), (500, True)):
        request = {
            "crops": np.zeros((crops, 64, 64, 3), np.uint8),
            "pooling": np.repeat(np.eye(3, dtype=np.float32), crops // 3 + 1, axis=1)[:, :crops],
        }
        if fits:
            assert stock_client.predict(untrained_artifact, request)["logits"].shape == (3, 3)
        else:
            with pytest.raises(RequestTooLargeError):
                stock_client.predict(untrained_artifact, request)


@pytest.mark.parametrize("max_request_bytes", [DetectorSettings().max_request_bytes, 50_000_000])
def test_a_full_batch_is_scored_whatever_the_limit_was_set_to(
    stock_client, stock_settings, untrained_artifact, max_request_bytes, monkeypatch
):
    monkeypatch.setattr("detector.batch.MOST_CROPS", 10_000)
    sandbox = Decoding()
    refused = 0

    def score(artifact, request):
        nonlocal refused
        try:
            return stock_client.predict(artifact, request)
        except RequestTooLargeError:
            refused += 1
            raise

    records = [InRecord("media", 0, i, 0, None, b"\x89PNG" + bytes([i]), ()) for i in range(64)]
    batch = open_batch(records, Route(untrained_artifact), sandbox, IngestSettings())
    wide = stock_settings.model_copy(update={"max_request_bytes": max_request_bytes})
    judged = judge(batch, score, wide, 900_000)
    assert [result.verdict.id for result in judged if result.verdict] == [f"media-0-{i}" for i in range(64)]
    assert (refused > 0) == (max_request_bytes > 6_553_500)


def test_an_item_that_never_fits_has_no_verdict(
    stock_client, stock_settings, untrained_artifact, monkeypatch
):
    sandbox = Decoding()
    records = [InRecord("media", 0, i, 0, None, b"\x89PNG" + bytes([i]), ()) for i in range(2)]
    few = open_batch(records, Route(untrained_artifact), sandbox, IngestSettings())
    monkeypatch.setattr(f"{__name__}.CROPS", 600)
    many = open_batch(
        [InRecord("media", 0, 2, 0, None, b"\x89PNGx", ())],
        Route(untrained_artifact),
        sandbox,
        IngestSettings(),
    )
    both = (*few, *many)
    judged = judge(
        both, lambda artifact, request: stock_client.predict(artifact, request), stock_settings, 900_000
    )
    assert [result.error and result.error.reason for result in judged] == [None, None, "request_too_large"]

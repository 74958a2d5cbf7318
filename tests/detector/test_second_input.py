"""A model that sees whole pictures beside the crops: its graph and its declaration are all that it brings."""

import json
from io import BytesIO

import numpy as np
import pytest
import torch
from handler_calls import Context
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import ingest.sandbox.sandbox  # noqa: F401 - what it counts
from detector.batch import judge, open_batch
from detector.handler import Handler
from detector.model.export import ExportError, export, prove_equal
from detector.model.graph import DetectorGraph
from detector.model.network import Network
from detector.release.artifact import EVALUATION, MODEL, MODEL_CARD, PROBE, WEIGHTS, seal, verify
from detector.release.contract import MediaInput, PoolingInput, body_bytes, crops_and_pooling, request_for
from detector.release.manifest import Architecture, GateParameters, Manifest, Term
from detector.release.tensors import (
    REQUEST_TYPE,
    beyond_tolerance,
    decode,
    differences,
    encode,
    read_probe,
    write_probe,
)
from detector.serving.rollout import Route
from detector.serving.session import Session, open_session
from detector.settings import DetectorSettings
from ingest.records import CropPlan, InRecord, PicturePlan
from ingest.sandbox.extract import extract
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings

INPUTS = (
    *crops_and_pooling(CropPlan(crop_px=64, patches=2, face_patches=0, frames=4)),
    MediaInput(
        name="picture",
        dtype="float32",
        shape=("pictures", 8, 12, 3),
        view=PicturePlan(width_px=12, height_px=8),
        range=(0, 1),
        mean=(0.5, 0.5, 0.5),
    ),
    PoolingInput(name="picture_pooling", dtype="float32", shape=("rows", "pictures"), pools="picture"),
)


class RedIsFake(nn.Module):
    """A release's graph whose logits move with how red the whole picture is."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        network = Network(Architecture(backbone="lcnet_035", crop_px=64, forensic=False, width=8), 2).eval()
        gate = GateParameters(
            terms={"energy": Term(median=0, scale=1, weight=1)},
            clip=1,
            unknown_threshold=9,
            fake_threshold=0.5,
        )
        self.base = DetectorGraph(network, gate, None)

    def forward(self, crops, pooling, picture, picture_pooling):
        said = self.base(crops, pooling)
        red = 20 * (picture_pooling @ picture.mean((1, 2)))[:, :1]
        return said | {"logits": 0.01 * said["logits"] + torch.cat([-red, red], 1)}


def asked(crops, pictures, rows):
    rng = np.random.default_rng(crops)
    poolings = [rng.random((rows, count)).astype(np.float32) for count in (crops, pictures)]
    pooling, picture_pooling = (one / one.sum(1, keepdims=True) for one in poolings)
    return {
        "crops": rng.integers(0, 256, (crops, 64, 64, 3), dtype=np.uint8),
        "pooling": pooling,
        "picture": rng.random((pictures, 8, 12, 3)).astype(np.float32) - 0.5,
        "picture_pooling": picture_pooling,
    }


REQUESTS = [asked(5, 2, 3), asked(1, 1, 1)]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    folder, graph = tmp_path_factory.mktemp("artifact"), RedIsFake()
    contract = export(graph, INPUTS, folder / MODEL)
    measured = prove_equal(graph, folder / MODEL, contract, REQUESTS)
    save_file(graph.base.network.state_dict(), folder / WEIGHTS)
    write_probe(folder / PROBE, REQUESTS[0], Session(folder / MODEL, contract, threads=1).score(REQUESTS[0]))
    (folder / EVALUATION).write_text("{}")
    (folder / MODEL_CARD).write_text("Red is fake.\n")
    draft = Manifest(
        classes=("real", "red"),
        architecture=graph.base.network.architecture,
        contract=contract,
        feature_version=None,
        gate=graph.base.gate,
        reference=(),
        parent=None,
        calibration={},
        export_differences=measured,
    )
    return verify(seal(folder, draft).folder)


def picture(*colours):
    """A PNG of one frame for each colour."""
    frames = [Image.new("RGB", (200, 100), colour) for colour in colours]
    file = BytesIO()
    frames[0].save(file, "PNG", save_all=len(frames) > 1, append_images=frames[1:], duration=40)
    return file.getvalue()


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(IngestSettings(decode_processes=1)) as opened:
        yield opened


@pytest.mark.slow
def test_its_probe_says_what_the_graph_says_in_another_session(artifact):
    request, expected = read_probe(artifact.folder / PROBE, artifact.manifest.contract)
    assert request.keys() == {one.name for one in INPUTS}
    assert beyond_tolerance(differences(open_session(artifact, 1).score(request), expected)) == []


def test_an_export_that_lost_the_second_input_is_found(artifact):
    graph = RedIsFake()
    graph.forward = lambda **arrays: graph.base(arrays["crops"], arrays["pooling"])
    with pytest.raises(ExportError, match="logits differs by"):
        prove_equal(graph, artifact.folder / MODEL, artifact.manifest.contract, REQUESTS)


@pytest.mark.slow
def test_the_worker_judges_items_and_frames_by_their_own_pictures(artifact, sandbox):
    session = open_session(artifact, 1)
    media = [picture("red"), picture("blue"), picture("blue", "red", "#ff8080"), picture("red")] * 3
    records = [InRecord("media", 0, i, 0, None, data, ()) for i, data in enumerate(media)]
    batch = open_batch(records, Route(artifact), sandbox, IngestSettings())
    judged = judge(batch, lambda _, request: session.score(request), DetectorSettings(), 900_000)
    verdicts = [one.verdict for one in judged]
    assert [verdict and verdict.label for verdict in verdicts] == ["fake", "real", "fake", "fake"] * 3
    assert all(
        verdict and [region.label for region in verdict.regions] == ["real", "fake", "fake"]
        for verdict in verdicts[2::4]
    )


def test_items_score_together_as_they_do_alone(artifact):
    session, contract = open_session(artifact, 1), artifact.manifest.contract
    media = [picture(*colours) for colours in (["red"], ["blue", "red", "lime"], ["white"]) * 4]
    items = [extract(data, contract.media_plan, 10**6) for data in media]
    together = session.score(request_for(items, contract))
    alone = [session.score(request_for([item], contract)) for item in items]
    np.testing.assert_allclose(
        together["logits"][: len(items)], [one["logits"][0] for one in alone], atol=1e-4
    )
    regions = np.concatenate([one["logits"][1:] for one in alone])
    np.testing.assert_allclose(together["logits"][len(items) :], regions, atol=1e-4)


def test_the_size_of_a_request_counts_every_view(artifact):
    contract = artifact.manifest.contract
    items = [extract(picture("red"), contract.media_plan, 10**6)] * 5
    body = len(encode(request_for(items, contract)))
    assert body <= body_bytes(items, contract) <= body + 256 * len(contract.inputs)


@pytest.fixture(scope="module")
def ask(artifact):
    handler = Handler()
    handler.initialize(Context(artifact.folder, ""))

    def ask(body, content_type):
        context = Context(artifact.folder, content_type)
        (answer,) = handler.handle([{"body": body}], context)
        return context.status, answer

    return ask


def test_the_handler_answers_media_with_a_verdict(ask):
    for colour, label in (("red", "fake"), ("blue", "real")):
        status, answer = ask(picture(colour), "image/png")
        assert (status, json.loads(answer)["label"]) == (200, label)


def test_the_handler_answers_the_workers_arrays_and_refuses_others(artifact, ask):
    status, answer = ask(encode(REQUESTS[0]), REQUEST_TYPE)
    assert status == 200
    assert beyond_tolerance(differences(decode(answer), open_session(artifact, 1).score(REQUESTS[0]))) == []
    crops_alone = {name: REQUESTS[0][name] for name in ("crops", "pooling")}
    status, answer = ask(encode(crops_alone), REQUEST_TYPE)
    assert (status, json.loads(answer)["reason"]) == (400, "tensors")

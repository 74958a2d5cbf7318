"""A release with a picture branch in a real TorchServe: it says what its probe says, within the limits."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from deploy.local.torchserve import TorchServe as Server
from detector.batch import judge, open_batch
from detector.model.export import export, prove_equal
from detector.model.graph import DetectorGraph
from detector.model.network import Network, PictureBranch
from detector.release.architecture import Architecture, Picture
from detector.release.artifact import EVALUATION, MODEL, MODEL_CARD, PROBE, WEIGHTS, Artifact, seal, verify
from detector.release.contract import crops_and_pooling, picture_and_pooling
from detector.release.gate import GateParameters, Term
from detector.release.graph_contract import write_probe
from detector.release.inputs import request_for
from detector.release.manifest import Manifest
from detector.release.tensors import ModelOutput, Request, encode
from detector.routing import Route
from detector.serving.mar import pack
from detector.serving.session import Session, open_session
from detector.serving.torchserve import TorchServe
from detector.settings import DetectorSettings
from detector.unknowns import decode
from ingest.records import CropPlan, InRecord, PicturePlan
from ingest.sandbox.extract import extract
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system

SIDE = 224
INPUTS = (
    *crops_and_pooling(CropPlan(crop_px=64, patches=4, face_patches=0)),
    *picture_and_pooling(PicturePlan(width_px=SIDE, height_px=SIDE, interpolation="bicubic")),
)


def photograph(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (200, 300, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A vision transformer of random weights looks at the picture; everything is unknown to the gate."""
    folder = tmp_path_factory.mktemp("artifact")
    torch.manual_seed(0)
    picture = Picture(
        backbone="test_vit", side_px=SIDE, mean=(127.5,) * 3, deviation=(127.5,) * 3, weights="random"
    )
    architecture = Architecture(backbone="lcnet_035", crop_px=64, forensic=False, width=8, picture=picture)
    gate = GateParameters(
        terms={"energy": Term(median=0, scale=1, weight=1)},
        clip=9,
        unknown_threshold=-9,
        fake_threshold=0.5,
    )
    network, branch = Network(architecture, 2).eval(), PictureBranch(picture, 2)
    graph = DetectorGraph(network, gate, None, branch)
    contract = export(graph, INPUTS, folder / MODEL)
    items = [extract(photograph(number), contract.media_plan, 10**6) for number in range(3)]
    requests = [request_for(items, contract), request_for(items[:1], contract)]
    measured = prove_equal(graph, folder / MODEL, contract, requests)
    state = {**network.state_dict(), **{f"picture.{k}": v for k, v in branch.state_dict().items()}}
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
    )
    return verify(seal(folder, draft).folder)


@pytest.fixture(scope="module")
def client(torchserve: Server, artifact: Artifact) -> Iterator[TorchServe]:
    settings = DetectorSettings(
        torchserve_url=torchserve.inference_url,
        torchserve_management_url=torchserve.management,
        model_store_dir=Path(torchserve.model_store),
    )
    with TorchServe(settings) as opened:
        pack(artifact, torchserve.model_store)
        opened.register(artifact)
        yield opened
        opened.unregister(artifact.version)


def test_the_release_says_there_what_its_probe_says(client: TorchServe, artifact: Artifact) -> None:
    assert max(client.probe(artifact).values()) < 1e-4


def test_a_full_batch_is_judged_within_the_request_limit_and_its_unknowns_carry_their_pictures(
    client: TorchServe, artifact: Artifact
) -> None:
    settings, sent = DetectorSettings(), []

    def score(to: Artifact, request: Request) -> ModelOutput:
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

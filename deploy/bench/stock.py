"""A stock network as a release, for the benchmark alone: never trained, one 224 px crop an image."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from deploy.demo.past_gates import go_live
from detector.model.export import export, prove_equal
from detector.model.graph import DetectorGraph
from detector.model.network import Network
from detector.release.architecture import Architecture
from detector.release.artifact import EVALUATION, MODEL, MODEL_CARD, PROBE, WEIGHTS, Artifact, seal
from detector.release.contract import crops_and_pooling
from detector.release.manifest import GateParameters, Manifest, Term
from detector.release.tensors import Request, write_probe
from detector.serving.session import Session
from ingest.records import CropPlan

CROP_PX = 224


def go_live_with_stock(folder: Path, settings: Mapping[str, str]) -> str:
    """Make a MobileNetV3-small of random weights into an artifact, and take it live; returns its digest.

    settings are the stack's. It is written into the ledger straight, for it would pass no gate. Raises
    DeployError and LedgerError.
    """
    artifact = _make(folder)
    go_live(artifact, settings)
    return artifact.digest


def _make(folder: Path) -> Artifact:
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    classes = ("real", "fake")
    architecture = Architecture(backbone="mobilenetv3_small_100", crop_px=CROP_PX, forensic=False)
    network = Network(architecture, len(classes)).eval()
    unit = Term(median=0, scale=1, weight=1)
    gate = GateParameters(
        terms={"energy": unit, "pseudo": unit},
        clip=1,
        unknown_threshold=9,
        fake_threshold=1,
    )
    graph = DetectorGraph(network, gate, None)
    plan = CropPlan(crop_px=CROP_PX, patches=1, face_patches=0)
    contract = export(graph, crops_and_pooling(plan), folder / MODEL)
    crops = np.random.default_rng(0).integers(0, 256, (2, CROP_PX, CROP_PX, 3), dtype=np.uint8)
    pooling = np.eye(2, dtype=np.float32)
    asked: Request = {"crops": crops, "pooling": pooling}
    requests: list[Request] = [asked, {"crops": crops[:1], "pooling": pooling[:1, :1]}]
    differences = prove_equal(graph, folder / MODEL, contract, requests)
    save_file(network.state_dict(), folder / WEIGHTS)
    write_probe(folder / PROBE, asked, Session(folder / MODEL, contract, threads=1).score(asked))
    (folder / EVALUATION).write_text("{}\n")
    (folder / MODEL_CARD).write_text("A stock network that was never trained: for timing only.\n")
    draft = Manifest(
        classes=classes,
        architecture=architecture,
        contract=contract,
        feature_version=None,
        gate=gate,
        reference=(),
        parent=None,
        calibration={},
        export_differences=differences,
    )
    return seal(folder, draft)

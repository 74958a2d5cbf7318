"""Releases for a measurement alone, which take no gate: a stock network, the live one without maps, its twin.

The stock network is never trained and takes one 224 px crop an image. The ledger takes all of them straight.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from deploy.release_records import Action
from deploy.releases.approval import to_take_out
from deploy.releases.ledger import Event, Ledger, Move
from deploy.rollout_records import Plan, Turn
from detector.model.export import export, prove_equal
from detector.model.graph import DetectorGraph
from detector.model.network import Network
from detector.release.artifact import EVALUATION, LOCALIZER, MODEL, MODEL_CARD, PROBE, WEIGHTS, Artifact, seal
from detector.release.contract import crops_and_pooling
from detector.release.manifest import Architecture, GateParameters, Manifest, Term
from detector.release.tensors import Request, write_probe
from detector.serving.session import Session
from ingest.records import CropPlan
from updater.deploy_client import DeployClient, candidate_of
from updater.settings import UpdaterSettings

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
    terms = {"energy": unit, "pseudo": unit}
    gate = GateParameters(terms=terms, clip=1, unknown_threshold=9, fake_threshold=1)
    graph = DetectorGraph(network, gate, None)
    plan = CropPlan(crop_px=CROP_PX, patches=1, face_patches=0)
    contract = export(graph, crops_and_pooling(plan), folder / MODEL)
    crops = np.random.default_rng(0).integers(0, 256, (2, CROP_PX, CROP_PX, 3), dtype=np.uint8)
    pooling = np.eye(2, dtype=np.float32)
    request: Request = {"crops": crops, "pooling": pooling}
    requests: list[Request] = [request, {"crops": crops[:1], "pooling": pooling[:1, :1]}]
    differences = prove_equal(graph, folder / MODEL, contract, requests)
    save_file(network.state_dict(), folder / WEIGHTS)
    write_probe(folder / PROBE, request, Session(folder / MODEL, contract, threads=1).score(request))
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


_ACTOR, _WHY = "forgewatch throughput", "for timing only"
_FOR_EVER_MINUTES = 1e6


def go_live(artifact: Artifact, settings: Mapping[str, str]) -> None:
    """Take an artifact live in the stack of these settings.

    Raises DeployError and LedgerError.
    """
    _enter(artifact, settings, "promote", None)


def go_on_trial(artifact: Artifact, settings: Mapping[str, str], share: float) -> None:
    """Have an artifact score this share of the items beside the live release; it stays in shadow.

    Raises DeployError and LedgerError.
    """
    plan = Plan(shadow=share, canary=(1.0,), minutes=_FOR_EVER_MINUTES)
    _enter(artifact, settings, "begin", Turn(plan=plan))


def _enter(artifact: Artifact, settings: Mapping[str, str], last: Action, turn: Turn | None) -> None:
    with DeployClient(UpdaterSettings(deploy_url=settings["FORGEWATCH_DEPLOY_URL"])) as deploy:
        deploy.put(artifact)
    candidate = candidate_of(artifact, 0, ())
    about = (artifact.digest, candidate.evaluation_digest, _WHY)
    ledger = Ledger(settings["FORGEWATCH_DEPLOY_DATABASE_URL"])
    ledger.append(
        lambda history: [
            Move(_ACTOR, "propose", *about, candidate=candidate),
            Move(_ACTOR, "approve", *about),
            Move(_ACTOR, last, *about, rollout=turn),
        ]
    )
    ledger.close()


def go_back(settings: Mapping[str, str]) -> None:
    """Take out the release on trial, or else the live one. Raises ApprovalError and LedgerError."""

    def moves(history: tuple[Event, ...]) -> list[Move]:
        out, _ = to_take_out(history, None)
        return [Move(_ACTOR, "rollback", out.digest, out.candidate.evaluation_digest, _WHY)]

    ledger = Ledger(settings["FORGEWATCH_DEPLOY_DATABASE_URL"])
    ledger.append(moves)
    ledger.close()


def twin(artifact: Artifact, folder: Path) -> Artifact:
    """Make a release that scores as this one does and has a digest of its own, in a new folder."""
    shutil.copytree(artifact.folder, folder)
    return seal(folder, artifact.manifest.model_copy(update={"parent": artifact.digest}))


def without_maps(artifact: Artifact, folder: Path) -> Artifact:
    """Make the same release without its localizer, in a new folder."""
    folder.mkdir(parents=True)
    for name in artifact.manifest.files.keys() - set(LOCALIZER.files):
        shutil.copyfile(artifact.folder / name, folder / name)
    return seal(folder, artifact.manifest.model_copy(update={"localizer": None}))

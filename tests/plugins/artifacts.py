"""Releases that were never trained: one that says what, one that also says where, one that also says when."""

import shutil

import numpy as np
import pytest

from updater.candidate.gates import make_gates
from updater.gate_records import Forgotten
from updater.records import Candidate, Evaluation, Performance, Shares
from updater.settings import UpdaterSettings

GROUPS = 1000
"""of each class that was held back: enough for narrow intervals"""


@pytest.fixture(scope="session")
def make_evaluation():
    """Makes an evaluation: the live release knows `known`; `named` is the share of each family."""

    def judged(classes, named, groups):
        shares = {
            name: Shares(items=20, real=0.0, fake=named, unknown=1 - named, named=named, groups=groups)
            for name in classes
        }
        shares["real"] = Shares(items=20, real=0.98, fake=0.01, unknown=0.01, named=0.98, groups=groups)
        return Performance(classes=shares, rejection_auroc=0.9)

    def make(classes=("real", "blend"), parent=None, known=(), *, named=0.9, seed=0, groups=GROUPS):
        new = tuple(name for name in classes[1:] if name not in known)
        before = judged(classes, 0.9, GROUPS) if parent else None
        after = judged(classes, named, groups)
        evaluation = Evaluation(
            update=1,
            parent=parent,
            backbone="lcnet_050",
            seed=seed,
            without_kinds=(),
            classes=classes,
            new=new,
            waiting={},
            items={"train": {}, "calibration": {}, "test": {}},
            pseudo_forgeries=20,
            before=before,
            after=after,
            calibration={},
            export_differences={},
            gates=(),
            forgotten=Forgotten(low=0.89 - named, high=0.91 - named, groups=GROUPS, by_family={})
            if parent
            else None,
        )
        return evaluation.model_copy(update={"gates": make_gates(UpdaterSettings(), evaluation)})

    return make


@pytest.fixture(scope="session")
def candidate_of():

    def candidate(artifact):
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
def untrained_artifact(tmp_path_factory, make_evaluation):
    """A sealed release of three classes, right in form; its network was never trained."""
    # Torch takes seconds to import, and most tests do without it.
    import torch
    from safetensors.torch import save_file

    from detector.model.export import export, prove_equal
    from detector.model.graph import DetectorGraph, Reference
    from detector.model.network import Network
    from detector.release.artifact import EVALUATION, MODEL, MODEL_CARD, PROBE, REFERENCE, WEIGHTS, seal
    from detector.release.contract import crops_and_pooling
    from detector.release.manifest import (
        FEATURE_VERSION,
        Architecture,
        GateParameters,
        Manifest,
        ReferenceEntry,
        Term,
    )
    from detector.release.tensors import write_probe
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


@pytest.fixture(scope="session")
def localized_artifact(untrained_artifact, tmp_path_factory):
    """The untrained release with a localizer of random weights; to its gate nothing is real."""
    import torch
    from safetensors.torch import save_file

    from detector.model.export import export_proven
    from detector.model.localizer import Localizer, LocalizerGraph
    from detector.release.artifact import LOCALIZER, seal, verify
    from detector.release.crop_graphs import MapContract
    from detector.release.tensors import write_probe
    from detector.serving.session import Session

    folder = tmp_path_factory.mktemp("localized") / "artifact"
    shutil.copytree(untrained_artifact.folder, folder)
    px = untrained_artifact.manifest.contract.crop_plan.crop_px
    rng = np.random.default_rng(0)

    def request(pictures, crops):
        rows = rng.integers(0, 256, (pictures * crops, px, px, 3), np.uint8)
        return {"crops": rows, "of_picture": np.repeat(np.arange(pictures), crops)}

    torch.manual_seed(0)
    graph = LocalizerGraph(Localizer(), 0.0, 1.0, 0.0).eval()
    contract = MapContract(crop_px=px, threshold=0.2, reals_marked=0.0, reals=1)
    requests = [request(2, 3), request(1, 1)]
    contract = export_proven(graph, contract, folder / LOCALIZER.model, requests)
    probe = Session(folder / LOCALIZER.model, contract, threads=1).score(requests[0])
    write_probe(folder / LOCALIZER.probe, requests[0], probe)
    save_file(graph.state_dict(), folder / LOCALIZER.weights)
    gate = untrained_artifact.manifest.gate.model_copy(update={"unknown_threshold": -99.0})
    draft = untrained_artifact.manifest.model_copy(update={"localizer": contract, "gate": gate})
    return verify(seal(folder, draft).folder)


LENGTHS = (7, 12)


@pytest.fixture(scope="session")
def scanned_artifact(localized_artifact, tmp_path_factory):
    """The release with a localizer and a scanner, both of random weights; to its gate nothing is real."""
    import torch
    from safetensors.torch import save_file

    from detector.features.cell_traces import FrameFeatures
    from detector.model.export import export_proven
    from detector.model.scanner import Scanner, ScannerGraph, over_time
    from detector.release.artifact import SCANNER, seal, verify
    from detector.release.crop_graphs import ScanContract
    from detector.release.tensors import write_probe
    from detector.serving.session import Session

    folder = tmp_path_factory.mktemp("scanned") / "artifact"
    shutil.copytree(localized_artifact.folder, folder)
    px = localized_artifact.manifest.contract.crop_plan.crop_px
    rng = np.random.default_rng(0)
    requests = [{"crops": rng.integers(0, 256, (length, px, px, 3), np.uint8)} for length in LENGTHS]

    torch.manual_seed(0)
    features = FrameFeatures(px)
    scanner = Scanner(features.width).eval()
    crops = torch.from_numpy(requests[1]["crops"]).permute(0, 3, 1, 2).float()
    scanner.standardise(over_time(features(crops)))
    contract = ScanContract(crop_px=px, threshold=0.01, reals_told=0.0, reals=1)
    graph = ScannerGraph(scanner, px)
    contract = export_proven(graph, contract, folder / SCANNER.model, requests)
    probe = Session(folder / SCANNER.model, contract, threads=1).score(requests[0])
    write_probe(folder / SCANNER.probe, requests[0], probe)
    save_file(scanner.state_dict(), folder / SCANNER.weights)
    draft = localized_artifact.manifest.model_copy(update={"scanner": contract})
    return verify(seal(folder, draft).folder)

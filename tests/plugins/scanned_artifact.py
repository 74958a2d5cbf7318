"""A release that says when: the untrained one that says where, with a scanner of random weights beside."""

import shutil

import numpy as np
import pytest

from detector.release.artifact import Artifact

LENGTHS = (7, 12)


@pytest.fixture(scope="session")
def scanned_artifact(localized_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The release with a localizer and a scanner, both of random weights; to its gate nothing is real."""
    import torch
    from safetensors.torch import save_file

    from detector.features.cell_traces import FrameFeatures
    from detector.model.export import export_proven
    from detector.model.scanner import Scanner, ScannerGraph, over_time
    from detector.release.artifact import SCANNER, seal, verify
    from detector.release.graph_contract import write_probe
    from detector.release.scan_contract import ScanContract
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

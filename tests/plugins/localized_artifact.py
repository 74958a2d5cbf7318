"""A release that says where: the untrained one, with a localizer of random weights."""

import shutil
from typing import Any

import numpy as np
import pytest

from detector.release.artifact import Artifact


@pytest.fixture(scope="session")
def localized_artifact(untrained_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The untrained release with a localizer of random weights; to its gate nothing is real."""
    import torch
    from safetensors.torch import save_file

    from detector.model.export import export_proven
    from detector.model.localizer import Localizer, LocalizerGraph
    from detector.release.artifact import LOCALIZER, seal, verify
    from detector.release.graph_contract import write_probe
    from detector.release.map_contract import MapContract
    from detector.serving.session import Session

    folder = tmp_path_factory.mktemp("localized") / "artifact"
    shutil.copytree(untrained_artifact.folder, folder)
    px = untrained_artifact.manifest.contract.crop_plan.crop_px
    rng = np.random.default_rng(0)

    def request(pictures: int, crops: int) -> dict[str, Any]:
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

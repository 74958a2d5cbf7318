from pathlib import Path

import numpy as np
import pytest
import torch

from detector.architecture import Architecture
from detector.export import ExportError, export, prove_equal, run
from detector.gate import GateParameters, Standard
from detector.graph import DetectorGraph, Reference
from detector.network import Network
from detector.scored import Scored, TensorsError
from detector.session import Session

Batch = tuple[np.ndarray, np.ndarray]


def batch(crops: int, rows: int, seed: int = 0) -> Batch:
    """Smooth and noisy crops of 64 px, and random pools of them."""
    rng = np.random.default_rng(seed)
    made = rng.integers(0, 256, (crops, 64, 64, 3), dtype=np.uint8)
    made[::2] = np.linspace(20, 220, 64)[:, None, None] + rng.integers(0, 8, (len(made[::2]), 64, 64, 3))
    pooling = rng.random((rows, crops)).astype(np.float32)
    return made, pooling / pooling.sum(1, keepdims=True)


BATCHES = [batch(1, 1), batch(7, 3), batch(5, 12), batch(9, 2)]


def gate() -> GateParameters:
    unit = Standard(median=0, scale=1)
    return GateParameters(
        temperature=1.5,
        energy=unit,
        pseudo=unit,
        novelty=Standard(median=3, scale=2),
        embedding_novelty=Standard(median=1, scale=2),
        trace_novelty=Standard(median=1, scale=2),
        clip=50,
        unknown_threshold=0,
        fake_threshold=0.5,
    )


@pytest.fixture(scope="module")
def forensic() -> DetectorGraph:
    return graph_on("lcnet_050")


@pytest.fixture(scope="module")
def bare() -> DetectorGraph:
    return graph_on("none")


def graph_on(backbone: str) -> DetectorGraph:
    torch.manual_seed(0)
    network = Network(Architecture(backbone=backbone, crop_px=64), 4).eval()
    assert network.forensics is not None
    rng = np.random.default_rng(0)
    with torch.inference_mode():
        crops = torch.from_numpy(rng.integers(0, 256, (32, 3, 64, 64)).astype(np.float32))
        raw = network.forensics(crops).numpy()
        embeddings = network(crops, torch.eye(32)).embedding.numpy()
    whitening = (rng.normal(size=(raw.shape[1], 50)) / 10).astype(np.float32)
    features = ((raw - raw.mean(0)) @ whitening).astype(np.float32)
    names = tuple(str(i) for i in range(32))
    embedded = (rng.normal(size=(embeddings.shape[1], 20)) / 10).astype(np.float32)
    reference = Reference(
        features,
        names,
        names,
        raw.mean(0),
        whitening,
        ((embeddings - embeddings.mean(0)) @ embedded).astype(np.float32),
        embeddings.mean(0),
        embedded,
        features[:, :30],
        whitening[:, :30],
        np.array([10, 20]),
    )
    return DetectorGraph(network, gate(), reference)


@pytest.fixture(scope="module")
def plain() -> DetectorGraph:
    torch.manual_seed(0)
    return DetectorGraph(
        Network(Architecture(backbone="lcnet_050", crop_px=64, forensic=False), 2), gate(), None
    )


@pytest.fixture(scope="module", params=["forensic", "bare", "plain"])
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[DetectorGraph, Path]:
    graph: DetectorGraph = request.getfixturevalue(request.param)
    path = tmp_path_factory.mktemp("onnx") / "detector.onnx"
    export(graph, path)
    return graph, path


def test_the_exported_graph_says_what_the_torch_graph_says(exported: tuple[DetectorGraph, Path]) -> None:
    graph, path = exported
    worst = prove_equal(graph, path, BATCHES)
    assert set(worst) >= {"logits", "energy", "novelty", "unknown_score", "features"}


def test_a_graph_whose_weights_moved_after_the_export_is_found(
    exported: tuple[DetectorGraph, Path],
) -> None:
    graph, path = exported
    with torch.no_grad():
        graph.network.head.bias += 0.01
    try:
        with pytest.raises(ExportError, match="logits differs by"):
            prove_equal(graph, path, BATCHES)
    finally:
        with torch.no_grad():
            graph.network.head.bias -= 0.01


def test_a_proof_with_one_size_is_no_proof(exported: tuple[DetectorGraph, Path]) -> None:
    graph, path = exported
    with pytest.raises(ValueError, match="several sizes"):
        prove_equal(graph, path, [BATCHES[0], BATCHES[0]])


def test_the_search_inside_the_graph_is_the_exact_one(forensic: DetectorGraph) -> None:
    crops, pooling = batch(7, 4)
    scored = run(forensic, crops, pooling)
    whitened = (scored.features - forensic.mean.numpy()) @ forensic.whitening.numpy()
    distance = np.linalg.norm(whitened[:, None] - forensic.reference.numpy()[None], axis=2)
    expected = np.sort(distance, 1)[:, :5]
    np.testing.assert_allclose(scored.neighbour_distance, expected, rtol=1e-3, atol=1e-3)
    relative = expected.mean(1) / forensic.reach.numpy()[scored.neighbour_index].mean(1)
    np.testing.assert_allclose(scored.novelty, relative, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(scored.neighbour_index[:, 0], distance.argmin(1))


def test_a_score_does_not_depend_on_its_company(exported: tuple[DetectorGraph, Path]) -> None:
    session = Session(exported[1], threads=1)
    crops, _ = batch(8, 1)
    alone = session.score(crops[:4], np.full((1, 4), 0.25, np.float32))
    pooling = np.zeros((2, 8), np.float32)
    pooling[0, :4] = pooling[1, 4:] = 0.25
    together = session.score(crops, pooling)
    for name in ("logits", "energy", "novelty", "unknown_score"):
        np.testing.assert_allclose(getattr(together, name)[0], getattr(alone, name)[0], atol=1e-4)


def test_without_forensic_features_there_is_no_novelty_and_no_neighbour(plain: DetectorGraph) -> None:
    scored: Scored = run(plain, *batch(3, 2))
    assert scored.features.shape == (2, 0)
    assert scored.neighbour_index.shape == scored.neighbour_distance.shape == (2, 0)
    assert not scored.novelty.any()


def test_a_network_and_a_reference_that_do_not_belong_together_are_refused(forensic: DetectorGraph) -> None:
    with pytest.raises(ValueError, match="reference"):
        DetectorGraph(forensic.network, gate(), None)


def test_crops_of_another_size_are_refused(exported: tuple[DetectorGraph, Path]) -> None:
    with pytest.raises(TensorsError, match="64 px"):
        Session(exported[1], threads=1).score(np.zeros((1, 32, 32, 3), np.uint8), np.ones((1, 1), np.float32))

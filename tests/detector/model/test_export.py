import numpy as np
import onnx
import pytest
import torch

from detector.model.export import ExportError, export, prove_equal, run
from detector.model.graph import DetectorGraph, Reference
from detector.model.network import Network
from detector.model.scores import own_distance
from detector.release.contract import crops_and_pooling
from detector.release.manifest import Architecture, GateParameters, Term
from detector.serving.session import Session
from detector.verdicts import unknown_parts
from ingest.records import CropPlan

pytestmark = pytest.mark.slow

INPUTS = crops_and_pooling(CropPlan(crop_px=64))


def asked(crops, rows, seed=0):
    """Smooth and noisy crops of 64 px, and random pools of them."""
    rng = np.random.default_rng(seed)
    made = rng.integers(0, 256, (crops, 64, 64, 3), dtype=np.uint8)
    made[::2] = np.linspace(20, 220, 64)[:, None, None] + rng.integers(0, 8, (len(made[::2]), 64, 64, 3))
    pooling = rng.random((rows, crops)).astype(np.float32)
    return {"crops": made, "pooling": pooling / pooling.sum(1, keepdims=True)}


REQUESTS = [asked(1, 1), asked(7, 3), asked(5, 12), asked(9, 2)]


OF_THE_LOGITS = {"energy": Term(median=0, scale=1, weight=1), "pseudo": Term(median=0, scale=1, weight=1)}
OF_THE_REFERENCE = {
    "novelty": Term(median=3, scale=2, weight=2),
    "embedding_novelty": Term(median=1, scale=2, weight=2),
    "trace_novelty": Term(median=1, scale=2, weight=3),
}


def gate(terms=OF_THE_LOGITS | OF_THE_REFERENCE):
    return GateParameters(terms=terms, clip=50, unknown_threshold=0, fake_threshold=0.5)


@pytest.fixture(scope="module")
def forensic():
    return graph_on("lcnet_050")


@pytest.fixture(scope="module")
def bare():
    return graph_on("none")


def graph_on(backbone):
    torch.manual_seed(0)
    network = Network(Architecture(backbone=backbone, crop_px=64), 4).eval()
    return DetectorGraph(network, gate(), reference_of(network))


def reference_of(network):
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
    return Reference(
        features,
        names,
        tuple("real" if i % 2 else "blended" for i in range(32)),
        raw.mean(0),
        whitening,
        ((embeddings - embeddings.mean(0)) @ embedded).astype(np.float32),
        embeddings.mean(0),
        embedded,
        features[:, :30],
        whitening[:, :30],
        np.array([10, 20]),
    )


@pytest.fixture(scope="module")
def plain():
    return without_features("lcnet_050")


def without_features(backbone):
    torch.manual_seed(0)
    network = Network(Architecture(backbone=backbone, crop_px=64, forensic=False), 2)
    return DetectorGraph(network, gate(OF_THE_LOGITS), None)


@pytest.fixture(scope="module", params=["forensic", "bare", "plain"])
def exported(request, tmp_path_factory):
    graph = request.getfixturevalue(request.param)
    path = tmp_path_factory.mktemp("onnx") / "detector.onnx"
    return graph, path, export(graph, INPUTS, path)


def test_the_exported_graph_says_what_the_torch_graph_says(exported):
    graph, path, contract = exported
    worst = prove_equal(graph, path, contract, REQUESTS)
    assert set(worst) >= {"logits", "unknown_score", "features", *graph.gate.terms}


def test_the_parts_of_an_unknown_score_are_its_terms(exported):
    graph, path, contract = exported
    output = Session(path, contract, threads=1).score(asked(9, 6))
    parts = unknown_parts(output, graph.gate, 6)
    assert [[*of_item] for of_item in parts] == [[*graph.gate.terms]] * 6
    sums = [sum(of_item.values()) for of_item in parts]
    np.testing.assert_allclose(sums, output["unknown_score"], atol=1e-3)


def test_what_the_graph_of_an_older_release_subtracts_is_a_part(exported):
    graph, path, contract = exported
    output = Session(path, contract, threads=1).score(asked(9, 6))
    older = output | {"unknown_score": output["unknown_score"] - 2}
    parts = unknown_parts(older, graph.gate.model_copy(update={"surroundings": True}), 6)
    np.testing.assert_allclose([of_item["surroundings"] for of_item in parts], -2, atol=1e-3)


def test_a_graph_whose_weights_moved_after_the_export_is_found(exported):
    graph, path, contract = exported
    with torch.no_grad():
        graph.network.head.bias += 0.01
    try:
        with pytest.raises(ExportError, match="logits differs by"):
            prove_equal(graph, path, contract, REQUESTS)
    finally:
        with torch.no_grad():
            graph.network.head.bias -= 0.01


def test_a_proof_with_one_size_is_no_proof(exported):
    graph, path, contract = exported
    with pytest.raises(ValueError, match="several sizes"):
        prove_equal(graph, path, contract, [REQUESTS[0], REQUESTS[0]])


def test_the_search_inside_the_graph_is_the_exact_one(forensic):
    reference = reference_of(forensic.network)
    output = run(forensic, asked(7, 4))
    whitened = (output["features"] - reference.mean) @ reference.whitening
    distance = np.linalg.norm(whitened[:, None] - reference.features[None], axis=2)
    expected = np.sort(distance, 1)[:, :5]
    np.testing.assert_allclose(output["neighbour_distance"], expected, rtol=1e-3, atol=1e-3)
    own = own_distance(torch.from_numpy(reference.features)).numpy()
    relative = expected.mean(1) / own[output["neighbour_index"]].mean(1)
    np.testing.assert_allclose(output["novelty"], relative, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(output["neighbour_index"][:, 0], distance.argmin(1))


def test_the_novelty_and_the_neighbours_share_one_search(forensic, tmp_path):
    def searches(graph):
        export(graph, INPUTS, tmp_path / "detector.onnx")
        nodes = onnx.load(tmp_path / "detector.onnx").graph.node
        return [node.op_type for node in nodes].count("TopK")

    without_neighbours = DetectorGraph(forensic.network, forensic.gate, reference_of(forensic.network))
    without_neighbours.search = None
    assert searches(forensic) == searches(without_neighbours)


def test_a_score_does_not_depend_on_its_company(exported):
    _, path, contract = exported
    session = Session(path, contract, threads=1)
    crops = asked(8, 1)["crops"]
    alone = session.score({"crops": crops[:4], "pooling": np.full((1, 4), 0.25, np.float32)})
    pooling = np.zeros((2, 8), np.float32)
    pooling[0, :4] = pooling[1, 4:] = 0.25
    together = session.score({"crops": crops, "pooling": pooling})
    for name in ("logits", "energy", "novelty", "unknown_score"):
        np.testing.assert_allclose(together[name][0], alone[name][0], atol=1e-4)


def test_without_forensic_features_there_is_no_novelty_and_no_neighbour(plain):
    output = run(plain, asked(3, 2))
    assert output["features"].shape == (2, 0)
    assert output["neighbour_index"].shape == output["neighbour_distance"].shape == (2, 0)
    assert not output["novelty"].any()


def test_a_gate_with_a_term_that_cannot_be_made_is_refused(forensic):
    unheard = {"telepathy": Term(median=0, scale=1, weight=1)}
    with pytest.raises(ValueError, match="cannot make: telepathy"):
        DetectorGraph(forensic.network, gate(OF_THE_LOGITS | unheard), reference_of(forensic.network))


def test_a_network_and_a_reference_that_do_not_belong_together_are_refused(forensic):
    with pytest.raises(ValueError, match="reference"):
        DetectorGraph(forensic.network, gate(), None)

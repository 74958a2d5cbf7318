import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor, nn

from detector.model.network import Network
from detector.model.scores import NetworkOutput
from detector.release.architecture import Architecture
from updater.benchmark.rejection.evidence import evidence_of, known_of
from updater.benchmark.rejection.logits import fit_odin, odin_scores
from updater.data.training_data import LabelledCrops

SIDE = 32


def labelled(counts: list[int], side: int = SIDE) -> LabelledCrops:
    rng = np.random.default_rng(0)
    names = tuple(f"{i:03d}" for i in range(len(counts)))
    return LabelledCrops(
        ids=names,
        families=("real",) * len(counts),
        sources=("s",) * len(counts),
        groups=names,
        crops=rng.integers(50, 200, (sum(counts), side, side, 3)).astype(np.uint8),
        starts=np.cumsum([0, *counts]),
    )


class LinearNetwork(nn.Module):
    """Logits (m, -m), m the mean pixel minus 100: the gradient's sign is the same everywhere."""

    def forward(self, crops: Tensor, pooling: Tensor) -> NetworkOutput:
        mean = pooling @ crops.mean((1, 2, 3)) - 100
        nothing = crops.new_zeros(len(mean))
        return NetworkOutput(torch.stack([mean, -mean], 1), nothing, nothing[:, None], nothing[:, None])


def test_a_linear_networks_score_is_worked_by_hand() -> None:
    items = labelled([1, 3, 2])
    means = [
        items.crops[a:b].mean((1, 2, 3)).mean() for a, b in zip(items.starts, items.starts[1:], strict=False)
    ]
    # The step is towards the answer: one epsilon up where the mean is above 100, and one down below.
    moved = np.array([m - 100 + 5 * np.sign(m - 100) for m in means])
    expected = -softmax(np.stack([moved, -moved], 1) / 1000, axis=1).max(1)
    assert odin_scores(LinearNetwork(), items, epsilon=5.0) == pytest.approx(expected, rel=1e-6)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(0)
    return Network(Architecture(backbone="lcnet_035", crop_px=SIDE, width=8), 3).eval()


def test_a_networks_score_is_that_of_a_step_along_the_gradient(network: Network) -> None:
    items = labelled([2])
    images = torch.tensor(items.crops).permute(0, 3, 1, 2).float().requires_grad_()
    pooling = torch.full((1, 2), 0.5)
    logits = network(images, pooling).logits / 1000
    (gradient,) = torch.autograd.grad(-logits.log_softmax(1).max(), images)
    with torch.no_grad():
        moved = network(images - 0.357 * gradient.sign(), pooling).logits.double() / 1000
    assert odin_scores(network, items) == pytest.approx(-moved.softmax(1).max(1).values.numpy(), rel=1e-6)
    assert odin_scores(network, items) != pytest.approx(odin_scores(network, items, epsilon=0.0), rel=1e-6)


def test_without_a_step_it_is_the_temperature_alone_and_needs_no_crops(network: Network) -> None:
    items = labelled([2, 1])
    pooling = torch.tensor([[0.5, 0.5, 0], [0, 0, 1]])
    with torch.no_grad():
        output = network(torch.tensor(items.crops).permute(0, 3, 1, 2).float(), pooling)
    evidence = evidence_of(network, output)
    score = fit_odin(known_of(network, evidence, np.array([0, 1])))
    assert score(evidence) == pytest.approx(odin_scores(network, items, epsilon=0.0), abs=1e-7)
    assert score(evidence) == pytest.approx(-softmax(evidence.logits / 1000, axis=1).max(1), rel=1e-6)


def test_a_small_step_makes_an_item_more_familiar(network: Network) -> None:
    items = labelled([1, 1, 1])
    assert (odin_scores(network, items, epsilon=0.01) < odin_scores(network, items, epsilon=0.0)).all()


def test_an_item_scores_the_same_alone_and_in_company(network: Network) -> None:
    items = labelled([1, 2, 1, 1, 2])
    together = odin_scores(network, items)
    alone = np.concatenate([odin_scores(network, items.take([i])) for i in range(5)])
    assert together.dtype == np.float64
    # Where a gradient is nearly 0 the size of a batch may turn its sign: 1e-6 of a score that moves by 1e-4.
    assert together == pytest.approx(alone, abs=1e-6)


def test_no_item_gives_no_score_and_progress_counts_items(network: Network) -> None:
    seen: list[tuple[int, int]] = []
    assert odin_scores(network, labelled([]).take([])).shape == (0,)
    odin_scores(network, labelled([1] * 5), progress=lambda *at: seen.append(at))
    assert seen == [(4, 5), (5, 5)]


def test_the_networks_own_gradients_stay_empty(network: Network) -> None:
    odin_scores(network, labelled([1]))
    assert all(parameter.grad is None for parameter in network.parameters())

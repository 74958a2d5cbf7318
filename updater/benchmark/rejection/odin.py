"""ODIN: the largest softmax probability at a high temperature, after a step towards the answer.

s(x) = -max_c softmax(f(x') / T)_c with x' = x - epsilon * sign(gradient of -log softmax(f(x) / T)_y at x)
and y the network's answer. Liang, Li and Srikant 2018, "Enhancing the reliability of out-of-distribution
image detection in neural networks", eq. 1 and 2; T = 1000 and epsilon = 0.0014 of a pixel's range there.

`fit` has epsilon = 0, which leaves the temperature: a third of a grey level on every pixel is noise of the
size of the traces that the forensic features read, and what they say of the stepped crops says little of the
medium. `scores` takes the step, by one gradient through the whole network, forensic branch and all; it
reads crops instead of evidence and is not in methods.py's table. pytorch-ood's ODIN agrees with the paper.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_ood.detector import MaxSoftmax, odin_preprocessing
from torch import Tensor

from detector.model.network import Network
from detector.model.scores import NetworkOutput
from updater.benchmark.rejection.evidence import Known, Score
from updater.benchmark.rejection.logits import fit_msp
from updater.data.training_data import LabelledCrops
from updater.training.crop_rows import as_images

TEMPERATURE = 1000.0
PUBLISHED_EPSILON = 0.0014 * 255
"""in grey levels, 0..255, as the crops are"""
_ITEMS_AT_ONCE = 4


def fit(known: Known) -> Score:
    """Nothing is fitted, and no step taken: epsilon is 0."""
    return fit_msp(known, temperature=TEMPERATURE)


def scores(
    network: Network,
    items: LabelledCrops,
    *,
    temperature: float = TEMPERATURE,
    epsilon: float = PUBLISHED_EPSILON,
    device: torch.device | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> NDArray[np.float64]:
    """Return the score of each item, float64 [n], in [-1, -1/K]; higher means less familiar.

    epsilon is in grey levels. An item's crops are moved together, by the gradient
    of the item's own answer. Leaves the network, which is on the device, in evaluation mode.
    """
    network.eval()
    found = []
    for first in range(0, len(items), _ITEMS_AT_ONCE):
        last = min(first + _ITEMS_AT_ONCE, len(items))
        found.append(_scores(network, items.take(range(first, last)), temperature, epsilon, device))
        progress(last, len(items))
    return np.concatenate([np.zeros(0), *found])


def _scores(
    network: Network, items: LabelledCrops, temperature: float, epsilon: float, device: torch.device | None
) -> NDArray[np.float64]:
    images = as_images(items.crops[:], device or torch.device("cpu"))
    counts = np.diff(items.starts)
    owners = np.repeat(np.arange(len(counts)), counts)
    pooling = torch.zeros(len(counts), len(owners), device=images.device)
    pooling[owners, np.arange(len(owners))] = torch.tensor(1 / counts[owners]).to(pooling)

    def logits(crops: Tensor) -> Tensor:
        output: NetworkOutput = network(crops, pooling)
        return output.logits

    moved = odin_preprocessing(logits, images, eps=epsilon, temperature=temperature)
    with torch.no_grad():
        score = MaxSoftmax.score(logits(moved).double(), temperature)
    return np.asarray(score.cpu().numpy(), np.float64)

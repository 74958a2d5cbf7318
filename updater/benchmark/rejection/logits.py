"""Post-hoc scores of the logits alone, and ODIN with its step."""

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_ood.detector import KLMatching, MaxLogit, MaxSoftmax, odin_preprocessing
from torch import Tensor

from detector.model.network import Network
from detector.model.scores import NetworkOutput
from updater.benchmark.rejection.evidence import FitSet, Score, as_score, float64
from updater.data.training_data import LabelledCrops
from updater.training.crop_rows import as_images


def fit_msp(known: FitSet, *, temperature: float = 1.0) -> Score:
    """MSP: the largest softmax probability.

    s(x) = -max_c softmax(f(x) / T)_c, in [-1, -1/K]. Hendrycks and Gimpel 2017, "A baseline for detecting
    misclassified and out-of-distribution examples in neural networks", section 3; T = 1 there.

    pytorch-ood's MaxSoftmax agrees with the paper, sign turned.

    Nothing is fitted.
    """
    return as_score(lambda evidence: MaxSoftmax.score(float64(evidence.logits), temperature))


def fit_max_logit(known: FitSet) -> Score:
    """MaxLogit: the largest logit.

    s(x) = -max_c f(x)_c, unbounded. Hendrycks et al. 2022, "Scaling out-of-distribution detection for
    real-world settings".

    pytorch-ood's MaxLogit agrees with the paper.

    Nothing is fitted.
    """
    return as_score(lambda evidence: MaxLogit.score(float64(evidence.logits)))


def fit_gen(known: FitSet, *, gamma: float = 0.1, largest: int = 100) -> Score:
    """GEN: the generalised entropy of the softmax.

    s(x) = sum over the M largest p_c of p_c^gamma * (1 - p_c)^gamma, with p = softmax(f(x)); 0 for a certain
    answer. Liu, Lochman and Zach 2023, "GEN: Pushing the limits of softmax-based out-of-distribution
    detection"; gamma = 0.1 and, for the 1,000 classes of ImageNet, M = 100 there.

    pytorch-ood's GEN differs: it clamps p to [1e-7, 1 - 1e-7]. Because 1e-7^0.1 is still 0.2, it gives
    all answers the same score whose other logits are 16 or more below the first. It also takes the mean of
    the M terms, which changes no order.

    Nothing is fitted. `largest` is M; where there are fewer classes, all of them count.
    """

    def formula(logits: Tensor) -> Tensor:
        p = torch.softmax(logits, 1).topk(min(largest, logits.shape[1]), dim=1).values
        return (p * (1 - p)).pow(gamma).sum(1)

    return as_score(lambda evidence: formula(float64(evidence.logits)))


def fit_klm(known: FitSet) -> Score:
    """KL matching: how far the posterior is from every class's typical one.

    s(x) = min_k KL(p(x) || d_k), in nats, with p the softmax and d_k the mean of p over the items that the
    network takes for class k; a class that it never names has no d_k. Hendrycks et al. 2022, "Scaling
    out-of-distribution detection for real-world settings".

    pytorch-ood's KLMatching agrees with the paper. The paper fits on a validation set, as `klm-published`
    does; `klm` is fitted on the training items, whose posteriors are sharper.

    Fit the d_k.
    """
    detector = KLMatching(model=None).fit_logits(float64(known.evidence.logits))
    return as_score(lambda evidence: detector.predict_logits(float64(evidence.logits)))


TEMPERATURE = 1000.0
PUBLISHED_EPSILON = 0.0014 * 255
"""in grey levels, 0..255, as the crops are"""
_ITEMS_AT_ONCE = 4


def fit_odin(known: FitSet) -> Score:
    """ODIN: the largest softmax probability at a high temperature, after a step towards the answer.

    s(x) = -max_c softmax(f(x') / T)_c with x' = x - epsilon * sign(gradient of -log softmax(f(x) / T)_y at x)
    and y the network's answer. Liang, Li and Srikant 2018, "Enhancing the reliability of out-of-distribution
    image detection in neural networks", eq. 1 and 2; T = 1000 and epsilon = 0.0014 of a pixel's range there.

    Here epsilon is 0, which leaves the temperature: a third of a grey level on every pixel is noise of the
    size of the traces that the forensic features read, and what they say of the stepped crops says little of
    the medium. `odin_scores` takes the step. Nothing is fitted.
    """
    return fit_msp(known, temperature=TEMPERATURE)


def odin_scores(
    network: Network,
    items: LabelledCrops,
    *,
    epsilon: float = PUBLISHED_EPSILON,
    device: torch.device = torch.device("cpu"),  # noqa: B008 - a device is a value
) -> NDArray[np.float64]:
    """Return ODIN's score of each item after its step, float64 [n], in [-1, -1/K].

    pytorch-ood's ODIN agrees with the paper. The step is by one gradient through the whole network, forensic
    branch and all: this reads crops instead of evidence. epsilon is in grey levels. An item's crops are moved
    together, by the gradient of the item's own answer. Leaves the network, which is on the device, in
    evaluation mode.
    """
    network.eval()
    parts = (
        items.take(range(len(items))[at : at + _ITEMS_AT_ONCE]) for at in range(0, len(items), _ITEMS_AT_ONCE)
    )
    return np.concatenate([np.zeros(0), *(_odin_scores(network, part, epsilon, device) for part in parts)])


def _odin_scores(
    network: Network, items: LabelledCrops, epsilon: float, device: torch.device
) -> NDArray[np.float64]:
    images = as_images(items.crops[:], device)
    counts = np.diff(items.starts)
    owners = np.repeat(np.arange(len(counts)), counts)
    pooling = torch.zeros(len(counts), len(owners), device=images.device)
    pooling[owners, np.arange(len(owners))] = torch.tensor(1 / counts[owners]).to(pooling)

    def logits(crops: Tensor) -> Tensor:
        output: NetworkOutput = network(crops, pooling)
        return output.logits

    moved = odin_preprocessing(logits, images, eps=epsilon, temperature=TEMPERATURE)
    with torch.no_grad():
        score = MaxSoftmax.score(logits(moved).double(), TEMPERATURE)
    return np.asarray(score.cpu().numpy(), np.float64)

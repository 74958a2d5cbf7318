"""Post-hoc scores of the logits alone, and ReAct, which reads the embedding to cut it."""

import torch
from pytorch_ood.detector import KLMatching, MaxLogit, MaxSoftmax, ReAct
from torch import Tensor, nn

from detector.model.scores import energy
from updater.benchmark.rejection.evidence import Known, Score, as_score, float64


def fit_msp(known: Known, *, temperature: float = 1.0) -> Score:
    """MSP: the largest softmax probability.

    s(x) = -max_c softmax(f(x) / T)_c, in [-1, -1/K]. Hendrycks and Gimpel 2017, "A baseline for detecting
    misclassified and out-of-distribution examples in neural networks", section 3; T = 1 there.

    pytorch-ood's MaxSoftmax agrees with the paper, sign turned.

    Nothing is fitted.
    """
    return as_score(lambda evidence: MaxSoftmax.score(float64(evidence.logits), temperature))


def fit_max_logit(known: Known) -> Score:
    """MaxLogit: the largest logit.

    s(x) = -max_c f(x)_c, unbounded. Hendrycks et al. 2022, "Scaling out-of-distribution detection for
    real-world settings".

    pytorch-ood's MaxLogit agrees with the paper.

    Nothing is fitted.
    """
    return as_score(lambda evidence: MaxLogit.score(float64(evidence.logits)))


def fit_gen(known: Known, *, gamma: float = 0.1, largest: int = 100) -> Score:
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


def fit_klm(known: Known) -> Score:
    """KL matching: how far the posterior is from every class's typical one.

    s(x) = min_k KL(p(x) || d_k), in nats, with p the softmax and d_k the mean of p over the items that the
    network takes for class k; a class that it never names has no d_k. Hendrycks et al. 2022, "Scaling
    out-of-distribution detection for real-world settings".

    pytorch-ood's KLMatching agrees with the paper. The paper fits on a validation set; here, as in OpenCIL,
    a score is fitted on the training items, whose posteriors are sharper.

    Fit the d_k.
    """
    detector = KLMatching(model=None).fit_logits(float64(known.evidence.logits))
    return as_score(lambda evidence: detector.predict_logits(float64(evidence.logits)))


def fit_react(known: Known, *, quantile: float = 0.9) -> Score:
    """ReAct: the energy after the embedding is cut from above.

    s(x) = E(W min(h(x), c) + b), with c the 90 % quantile of all activations of all training items and E the
    energy at T = 1. Sun, Guo and Li 2021, "ReAct: Out-of-distribution detection with rectified activations",
    section 3.

    pytorch-ood's ReAct agrees with the paper. Of a cosine head it is the normalised embedding that is cut,
    as that is what its weights multiply.

    Fit c. `quantile` is in 0..1.
    """
    detector = ReAct(backbone=nn.Identity(), head=known.head, percentile=quantile, detector=energy)
    detector.fit_feature_maps(float64(known.evidence.embedding), torch.tensor(known.targets))
    return as_score(lambda evidence: detector.predict_feature_maps(float64(evidence.embedding)))

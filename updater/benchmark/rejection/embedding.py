"""Post-hoc scores of the embedding.

kNN, NNGuide and Relation search the nearest training items. ReAct, ASH, SCALE and DICE are energies of
changed activations or weights. SHE, RMD and GradNorm read patterns, Gaussians and gradients. The papers'
activations come out of a ReLU and are never negative; an embedding here may be.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import faiss
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pytorch_ood.detector import ASH, RMD, SCALE, SHE, NNGuide, ReAct
from torch import Tensor, nn

from detector.model.scores import energy
from updater.benchmark.rejection.evidence import Evidence, EvidenceError, FitSet, Score, as_score, float64


def fit_embedding_knn(known: FitSet, *, neighbours: int = 5) -> Score:
    """kNN in the embedding: the distance to the k-th nearest training item.

    s(x) = |z - z_(k)|, with z = h(x) / |h(x)| and z_(k) the k-th nearest z of the training items, in 0..2.
    Sun et al. 2022, "Out-of-distribution detection with deep nearest neighbors", section 3. The paper takes k
    = 50 for CIFAR-10 with its 5,000 images a class; here a class has some tens, so k is 5, as in the gate.

    FAISS searches exactly; pytorch-ood's KNN gives the same by scikit-learn.

    Index the training items; `neighbours` is k. Raises EvidenceError where there are fewer of them.
    """
    distances = distances_to(_unit(known.evidence), neighbours)
    return as_score(lambda evidence: distances(_unit(evidence))[:, -1])


def distances_to(
    items: NDArray[np.float32], neighbours: int
) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """Return a search of rows [m, D] for the distances [m, k] to their nearest of n items [n, D], by FAISS.

    Euclidean, exact, the nearest first. Raises EvidenceError for fewer items than neighbours.
    """
    if len(items) < neighbours:
        raise EvidenceError(f"{len(items)} training items cannot give {neighbours} neighbours")
    index = faiss.IndexFlatL2(items.shape[1])
    index.add(np.ascontiguousarray(items))

    def search(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        squared, _ = index.search(np.ascontiguousarray(rows), neighbours)
        return np.sqrt(np.maximum(squared, 0))

    return search


def _unit(evidence: Evidence) -> NDArray[np.float32]:
    return np.asarray(F.normalize(torch.tensor(evidence.embedding), dim=1).numpy())


_LISTED_AT_ONCE = 128


def fit_nnguide(known: FitSet, *, neighbours: int = 10, share: float = 1.0) -> Score:
    """NNGuide: the energy, guided by the nearest training items.

    s(x) = -L(x) * 1/k * (sum of the k largest L(x_j) * cos(h(x), h(x_j)) over the training items x_j), with h
    the embedding and L the log-sum-exp of the logits, which is -energy. Park, Jung and Teoh 2023, "Nearest
    neighbor guidance for out-of-distribution detection"; k = 10 there. OpenCIL takes k = 100 among whole
    batches of 128 items, until they are more than 1 % of all; `nnguide-published` does the same.

    pytorch-ood's NNGuide agrees with the paper, except that it keeps the training items in float32. It holds
    only where L is positive: of two negative factors the product would make an item familiar.

    Keep a share of the training items, evenly spaced. Raises EvidenceError for fewer than neighbours.
    """
    count = len(known.evidence)
    kept = (int(share * count) // _LISTED_AT_ONCE + 1) * _LISTED_AT_ONCE
    rows = np.linspace(0, count, min(kept, count), endpoint=False, dtype=int)
    bank, targets = (torch.tensor(values[rows]) for values in (known.evidence.embedding, known.targets))
    if len(bank) < neighbours:
        raise EvidenceError(f"{len(bank)} training items cannot give {neighbours} neighbours")
    detector = NNGuide(encoder=None, head=known.head, k=neighbours).fit_features(bank, targets)
    return as_score(lambda evidence: detector.predict_features(torch.tensor(evidence.embedding)))


_ROWS_AT_ONCE = 512


def fit_relation(known: FitSet, *, power: float = 1.0, least_edge: float = 0.03) -> Score:
    """Relation: how strongly an item is tied to the training items in embedding and answer.

    s(x) = -sum_j k(x, x_j)^t over the training items x_j with k(x, x_j) above 0.03, and
    k(x, x_j) = max(0, cos(h(x), h(x_j))) * p(x)^T p(x_j) in 0..1, with h the embedding and p the softmax.
    Kim, Yun and Song 2023, "Neural relation graph: a unified framework for identifying label noise and
    outlier data", section 3. Their published code has t = 1 for outliers, 4 for wrong labels, and leaves
    out the edges up to 0.03, as OpenOOD's does.

    pytorch-ood has no such method.

    Keep the training items. `power` is t; `least_edge` = 0 gives the sum over all of them.
    """
    embeddings, posteriors = _normalise(known.evidence)

    def formula(evidence: Evidence) -> Tensor:
        count = len(evidence) // _ROWS_AT_ONCE + 1
        parts = zip(*(rows.chunk(count) for rows in _normalise(evidence)), strict=True)
        kernels = ((h @ embeddings.T).clamp_min(0) * (p @ posteriors.T) for h, p in parts)
        return -torch.cat([torch.where(k > least_edge, k.pow(power), 0).sum(1) for k in kernels])

    return as_score(formula)


def _normalise(evidence: Evidence) -> tuple[Tensor, Tensor]:
    return F.normalize(float64(evidence.embedding), dim=1), torch.softmax(float64(evidence.logits), 1)


def fit_react(known: FitSet, *, quantile: float = 0.9) -> Score:
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


def fit_ash(known: FitSet, *, quantile: float = 0.9) -> Score:
    """ASH-B: the energy after all but the largest activations are set to 0 and these to one value.

    s(x) = E(W a + b), a = sum h / k where h is among its own k largest, a tenth of all, else 0. Djurisic et
    al. 2023, "Extremely simple activation shaping for out-of-distribution detection", section 3. Of its three
    forms it is OpenOOD's, which also has this tenth.

    pytorch-ood's ASH agrees with the paper. Nothing is fitted.
    """
    return _of_maps(ASH, known, "ash-b", quantile, energy)


def fit_scale(known: FitSet, *, quantile: float = 0.85) -> Score:
    """SCALE: the energy after all activations are scaled.

    s(x) = E(W h exp(sum h / sum of the largest 15 % of h) + b). Xu et al. 2024, "Scaling for training time
    and post-hoc out-of-distribution detection enhancement", section 4.

    pytorch-ood's SCALE agrees with the paper. Nothing is fitted.
    """
    return _of_maps(SCALE, known, quantile, energy)


def _of_maps(method: type[ASH | SCALE], known: FitSet, *options: Any) -> Score:
    detector = method(nn.Identity(), lambda maps: known.head(maps.flatten(1)), *options)
    return as_score(lambda e: detector.predict_feature_maps(float64(e.embedding)[:, :, None, None]))


def fit_dice(known: FitSet, *, quantile: float = 0.9) -> Score:
    """DICE: the energy of a head that keeps its weights of the largest contributions.

    s(x) = E((M * W) h(x) + b), with M = 1 where W * mean(h) is among its largest 10 %, else 0. Sun and Li
    2022, "DICE: leveraging sparsification for out-of-distribution detection", eq. 4 and 5.

    pytorch-ood's DICE gives the same, but for a contribution that is the threshold itself: rounding may keep
    it there, and here, as in OpenOOD, it is never kept.

    Fit the mean embedding.
    """
    contribution = known.evidence.embedding.mean(0) * known.head_weight
    kept = contribution > np.percentile(contribution, 100 * quantile)
    sparse = replace(known, head_weight=np.where(kept, known.head_weight, 0))
    return as_score(lambda evidence: energy(sparse.head(float64(evidence.embedding))))


def fit_she(known: FitSet) -> Score:
    """SHE: the inner product with the pattern of the class that the network answers.

    s(x) = -h(x)^T S_y, with S_c the mean embedding of the training items of class c that the network answers
    rightly. Zhang et al. 2023, "Out-of-distribution detection based on in-distribution data patterns
    memorization with modern Hopfield energy", eq. 8.

    pytorch-ood's SHE agrees with the paper.

    Fit the patterns. Raises EvidenceError where the network answers no item of a class rightly.
    """
    right = known.evidence.logits.argmax(1) == known.targets
    if lone := set(range(len(known.head_weight))) - set(known.targets[right].tolist()):
        raise EvidenceError(f"SHE has no pattern of class {min(lone)}: none of its items is answered rightly")
    detector = SHE(None, known.head)
    detector.fit_features(float64(known.evidence.embedding), torch.tensor(known.targets))
    return as_score(lambda evidence: detector.predict_features(float64(evidence.embedding)))


def fit_rmd(known: FitSet) -> Score:
    """Relative Mahalanobis distance: to the nearest class, less the distance to all classes together.

    s(x) = min_c (d_c(x) - d_0(x)), with d_c the squared Mahalanobis distance to the mean of class c under the
    classes' shared covariance and d_0 under one Gaussian of all items. Ren et al. 2021, "A simple fix to
    Mahalanobis distance for improving near-OOD detection", eq. 3 and 4.

    pytorch-ood's RMD takes sums over the items for covariances, in float32: its score is the paper's over
    their number, by which it is multiplied here. Of no items it fails, and of classes without any.

    Fit both Gaussians of the embedding.
    """
    detector, count = RMD(None), len(known.evidence)
    present = np.unique(known.targets, return_inverse=True)[1]
    detector.fit_features(torch.tensor(known.evidence.embedding), torch.tensor(present))
    return as_score(lambda e: count * detector.predict_features(torch.tensor(e.embedding)) if len(e) else ())


def fit_gradnorm(known: FitSet) -> Score:
    """GradNorm: the length of the gradient of the head's weights towards a uniform answer.

    s(x) = -|d L / dW|_1 = -|h(x)|_1 * |K softmax(f(x)) - 1|_1, L the cross-entropies with each of the K
    classes, added up. Huang, Geng and Li 2021, "On the importance of gradients for detecting distributional
    shifts in the wild", eq. 6 to 8; their published code and OpenOOD's add up, eq. 6 prints the mean over K.

    pytorch-ood's GradNorm gives 1/K of this by one backward pass an item. Nothing is fitted.
    """

    def formula(evidence: Evidence) -> Tensor:
        p = torch.softmax(float64(evidence.logits), 1)
        return -float64(evidence.embedding).abs().sum(1) * (p.shape[1] * p - 1).abs().sum(1)

    return as_score(formula)

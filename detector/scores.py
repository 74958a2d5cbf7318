"""The scores of rejection, as pure torch functions that export to ONNX."""

import torch
from torch import Tensor

from detector.gate import GateParameters, Standard


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return E = -T * logsumexp(logits / T), float32 [M]; higher means less familiar.

    logits: float32 [M, K] over the known classes. Source: Liu et al. 2020, "Energy-based
    out-of-distribution detection", eq. 4.
    """
    return -temperature * torch.logsumexp(logits / temperature, dim=-1)


def pseudo_score(logits: Tensor, pseudo_logit: Tensor) -> Tensor:
    """Return the log odds of the pseudo-forgery class against all known ones, float32 [M].

    logits: float32 [M, K] over the known classes; pseudo_logit: float32 [M]. Higher means more like
    a forgery of no known family.
    """
    return pseudo_logit - torch.logsumexp(logits, dim=-1)


def fake_probability(logits: Tensor) -> Tensor:
    """Return 1 - softmax(logits)[real], float32 [M]; class 0 is real."""
    return 1 - torch.softmax(logits, dim=-1)[:, 0]


def novelty(whitened: Tensor, reference: Tensor, neighbours: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Return how far each row is from its nearest reference rows.

    whitened: float32 [M, F]; reference: float32 [R, F], whitened alike. Returns the mean Euclidean
    distance to the nearest rows, float32 [M]; their indices, int64 [M, neighbours]; their
    distances, float32 [M, neighbours], nearest first. Raises ValueError where R < neighbours.
    """
    if reference.shape[0] < neighbours:
        raise ValueError(f"a reference of {reference.shape[0]} rows cannot give {neighbours} neighbours")
    # |a - b|^2 = |a|^2 + |b|^2 - 2ab finds the nearest by one matrix product (cdist does not export
    # everywhere), but loses the digits of a small distance: those of the found rows are taken anew.
    squared = whitened.square().sum(1, keepdim=True) + reference.square().sum(1) - 2 * whitened @ reference.T
    found = torch.topk(squared, neighbours, dim=1, largest=False).indices
    exact = (whitened[:, None] - reference[found]).square().sum(2).sqrt()
    distance, order = torch.topk(exact, neighbours, dim=1, largest=False, sorted=True)
    index = found.gather(1, order)
    return distance.mean(1), index, distance


def fused(energy: Tensor, pseudo: Tensor, novelty: Tensor, gate: GateParameters) -> Tensor:
    """Return the unknown score of the gate, float32 [M], from three scores of that shape."""

    def standardised(score: Tensor, standard: Standard) -> Tensor:
        return ((score - standard.median) / standard.scale).clamp(-gate.clip, gate.clip)

    of_energy, of_pseudo, of_novelty = gate.weights
    return (
        of_energy * standardised(energy, gate.energy)
        + of_pseudo * standardised(pseudo, gate.pseudo)
        + of_novelty * standardised(novelty, gate.novelty)
    )

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


def novelty(
    whitened: Tensor, reference: Tensor, reach: Tensor, neighbours: int = 5
) -> tuple[Tensor, Tensor, Tensor]:
    """Return how far each row is from its nearest reference rows, next to how far those are from theirs.

    whitened: float32 [M, F]; reference: float32 [R, F], whitened alike; reach: float32 [R], what
    `reference_reach` made of it. Returns the mean Euclidean distance to the nearest rows over the mean
    reach of these rows, float32 [M], about 1 among familiar media and higher farther off; their
    indices, int64 [M, neighbours]; their distances, float32 [M, neighbours], nearest first. Raises
    ValueError where R < neighbours.

    The ratio is the simplest form of the local outlier factor (Breunig et al. 2000). A bare distance
    is larger in a class with few exemplars or a wide spread, so that one threshold for all classes
    lets most unknowns pass or turns that class away.
    """
    index, distance = _nearest(whitened, reference, neighbours)
    return distance.mean(1) / reach[index].mean(1), index, distance


def reference_reach(reference: Tensor, neighbours: int = 5) -> Tensor:
    """Return each reference row's mean distance to its nearest others, float32 [R], from [R, F].

    At least a fifth of the median: near-duplicates among the exemplars must not make their surroundings
    look empty. Raises ValueError where R <= neighbours. Not for the exported graph.
    """
    # The nearest row is the row itself, at a distance of about 0.
    own = _nearest(reference, reference, neighbours + 1)[1][:, 1:].mean(1)
    return own.clamp_min(0.2 * float(own.median())).clamp_min(1e-6)


def _nearest(rows: Tensor, reference: Tensor, count: int) -> tuple[Tensor, Tensor]:
    if reference.shape[0] < count:
        raise ValueError(f"a reference of {reference.shape[0]} rows cannot give {count} neighbours")
    # |a - b|^2 = |a|^2 + |b|^2 - 2ab is one matrix product, and cdist does not export everywhere. Whitening
    # within classes can throw classes hundreds of units apart: single precision then keeps no digit of a
    # distance of ten, and two runs of one network would not find the same neighbours.
    a, b = rows.double(), reference.double()
    squared = a.square().sum(1, keepdim=True) + b.square().sum(1) - 2 * a @ b.T
    nearest, index = torch.topk(squared, count, dim=1, largest=False, sorted=True)
    return index, nearest.clamp_min(0).sqrt().float()


def trace_novelty(whitened: Tensor, reference: Tensor, reach: Tensor, widths: list[int]) -> Tensor:
    """Return the mean over groups of columns of the novelty in each group alone, float32 [M].

    whitened: float32 [M, T]; reference: float32 [R, T], whitened alike; reach: float32 [R, G], of each
    group; widths: the columns of the G groups, T in all.
    """
    groups = zip(
        torch.split(whitened, widths, 1), torch.split(reference, widths, 1), reach.unbind(1), strict=True
    )
    return torch.stack([novelty(rows, known, near)[0] for rows, known, near in groups]).mean(0)


def trace_reach(reference: Tensor, widths: list[int]) -> Tensor:
    """Return `reference_reach` in each group of columns alone, float32 [R, G], from [R, T]."""
    return torch.stack([reference_reach(known) for known in torch.split(reference, widths, 1)], 1)


def fused(
    energy: Tensor,
    pseudo: Tensor,
    novelty: Tensor,
    embedding_novelty: Tensor,
    trace_novelty: Tensor,
    gate: GateParameters,
) -> Tensor:
    """Return the unknown score of the gate, float32 [M], from five scores of that shape."""

    def standardised(score: Tensor, standard: Standard) -> Tensor:
        return ((score - standard.median) / standard.scale).clamp(-gate.clip, gate.clip)

    of_energy, of_pseudo, of_novelty, of_embedding, of_traces = gate.weights
    return (
        of_energy * standardised(energy, gate.energy)
        + of_pseudo * standardised(pseudo, gate.pseudo)
        + of_novelty * standardised(novelty, gate.novelty)
        + of_embedding * standardised(embedding_novelty, gate.embedding_novelty)
        + of_traces * standardised(trace_novelty, gate.trace_novelty)
    )

"""WA: weights of new classes are brought to the length of those of old ones, once training is done.

Zhao et al. 2020, "Maintaining discrimination and fairness in class incremental learning". Training, eq. 4:
(1 - lambda) times the cross-entropy plus lambda times the distillation of old logits at temperature 2,
lambda = |old| / |all classes|. Aligning, eq. 5-7: a new class's logit is multiplied by
  gamma = mean of |w| over old classes / mean of |w| over new classes,
its bias too, which the paper's head does not have. The head has to be linear: lengths mean nothing to a
cosine head. "bc" has no new logit, and nothing to align. Heeds every option.
"""

import torch
from torch import Tensor

from updater.benchmark.learners.teacher import interpolated
from updater.training import two_stages
from updater.training.losses import classification
from updater.training.step import Learnt, Step, with_head


def learn(step: Step) -> Learnt:
    """Train a network on a step and align its head. Raises ValueError for a cosine head."""
    if step.architecture.head != "linear":
        raise ValueError("WA aligns a linear head; the architecture has a cosine one")
    trained = two_stages.train(
        step, "wa", lambda network, data: interpolated(classification(step, data), step, data)
    )
    network = trained.network
    state = network.head.state_dict()
    old = len(step.old) if step.options.scheme != "bc" else 0
    weight, bias = aligned(state["weight"], state["bias"], old)
    return Learnt(with_head(network, {"weight": weight, "bias": bias}), step.classes)


def aligned(weight: Tensor, bias: Tensor, old: int) -> tuple[Tensor, Tensor]:
    """Return the weight, float32 [K, D], and bias, float32 [K], with the logits from `old` on aligned.

    Where there are no old classes, or no new ones, nothing changes.
    """
    if not 0 < old < len(weight):
        return weight, bias
    norms = weight.norm(dim=1)
    factor = torch.ones_like(bias)
    factor[old:] = norms[:old].mean() / norms[old:].mean()
    return weight * factor[:, None], bias * factor

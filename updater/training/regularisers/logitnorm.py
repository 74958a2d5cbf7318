"""LogitNorm: a cross-entropy that cannot fall by longer logits (Wei et al. 2022).

"Mitigating neural network overconfidence with logit normalization". L = -log softmax(f / (tau |f|))_y in
training; at test time the logits are read as they are, by the maximum softmax probability or any other
post-hoc score. tau = 0.04 as in the paper's CIFAR-10 run and in OpenCIL's configuration. The loss is
pytorch-ood's `LogitNorm`, which has no scheme but the cross-entropy: hence the two lines here.
"""

import torch
from torch import Tensor

TEMPERATURE = 0.04
_TINY = 1e-7


def normalised(logits: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Return f / (tau |f|), float32 [M, K], each row of length 1 / tau; logits: float32 [M, K]."""
    length: Tensor = torch.linalg.vector_norm(logits, dim=1, keepdim=True)
    return logits / (temperature * (length + _TINY))

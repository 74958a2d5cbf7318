"""T2FNorm: features normalised in training only (Regmi et al. 2023).

"T2FNorm: extremely simple scaled train-time feature normalization for OOD detection". In training the head
reads h / (tau |h|); at test time it reads h, whose length then tells familiar from unfamiliar, so that the
post-hoc scores apply. tau = 0.1 as in OpenCIL's configuration. A cosine head normalises at all times, and
has nothing to gain from it.
"""

import torch.nn.functional as F
from torch import Tensor

TEMPERATURE = 0.1


def normalised(embedding: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Return h / (tau |h|), float32 [M, D], each row of length 1 / tau; embedding: float32 [M, D]."""
    return F.normalize(embedding, dim=1) / temperature

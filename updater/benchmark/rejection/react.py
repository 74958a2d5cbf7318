"""ReAct: the energy after the embedding is cut from above.

s(x) = E(W min(h(x), c) + b), with c the 90 % quantile of all activations of all training items and E the
energy at T = 1. Sun, Guo and Li 2021, "ReAct: Out-of-distribution detection with rectified activations",
section 3.

pytorch-ood's ReAct agrees with the paper. Of a cosine head it is the normalised embedding that is cut,
as that is what its weights multiply.
"""

import torch
from pytorch_ood.detector import ReAct
from torch import nn

from detector.model.scores import energy
from updater.benchmark.rejection.evidence import Known, Score, checked, float64


def fit(known: Known, *, quantile: float = 0.9) -> Score:
    """Fit c. `quantile` is in 0..1."""
    detector = ReAct(backbone=nn.Identity(), head=known.head, percentile=quantile, detector=energy)
    detector.fit_feature_maps(float64(known.evidence.embedding), torch.tensor(known.targets))
    return checked(known, lambda evidence: detector.predict_feature_maps(float64(evidence.embedding)))

"""KL matching: how far the posterior is from every class's typical one.

s(x) = min_k KL(p(x) || d_k), in nats, with p the softmax and d_k the mean of p over the items that the
network takes for class k; a class that it never names has no d_k. Hendrycks et al. 2022, "Scaling
out-of-distribution detection for real-world settings".

pytorch-ood's KLMatching agrees with the paper. The paper fits on a validation set; here, as in OpenCIL,
a score is fitted on the training items, whose posteriors are sharper.
"""

from pytorch_ood.detector import KLMatching

from updater.benchmark.rejection.evidence import Known, Score, checked, float64


def fit(known: Known) -> Score:
    """Fit the d_k."""
    detector = KLMatching(model=None).fit_logits(float64(known.evidence.logits))
    return checked(known, lambda evidence: detector.predict_logits(float64(evidence.logits)))

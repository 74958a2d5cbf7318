import pytest
import torch

from detector.model.scores.fused import fused
from detector.release.gate import GateParameters, Term

GATE = GateParameters(
    terms={
        "energy": Term(median=1, scale=2, weight=1),
        "pseudo": Term(median=0, scale=1, weight=1),
        "novelty": Term(median=10, scale=5, weight=2),
    },
    clip=3,
    unknown_threshold=0,
    fake_threshold=0.5,
)
SCORES = {
    name: torch.tensor([value]) for name, value in (("pseudo", -9.0), ("novelty", 20.0), ("energy", 5.0))
}


def test_fused_weighs_clipped_standard_scores_by_their_names() -> None:
    assert fused(SCORES, GATE).item() == pytest.approx(2 - 3 + 2 * 2)


def test_a_score_that_is_no_term_changes_nothing() -> None:
    more = SCORES | {"max_logit": torch.tensor([1e9])}
    assert torch.equal(fused(more, GATE), fused(SCORES, GATE))


def test_a_term_without_its_score_is_refused() -> None:
    with pytest.raises(KeyError, match="novelty"):
        fused({name: score for name, score in SCORES.items() if name != "novelty"}, GATE)

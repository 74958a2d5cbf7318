"""What holds of every head that is trained on frozen embeddings."""

import numpy as np
import pytest
import torch

from updater.benchmark.rejection.evidence import Evidence, EvidenceError
from updater.benchmark.rejection.fine_tuned_head import FineTuning
from updater.benchmark.rejection.methods import HEADS
from updater.measures import auroc

every_head = pytest.mark.parametrize("name", HEADS)
SHORT = FineTuning(steps=12, batch=32)
UNFIT = ("ber-published", "vos-published", "npos-published")
"""Published margins are of energies that a head of so few classes does not have."""


def auc_of_what_lies_between(name, space, old):
    """Of what lies between two classes (positive), against fresh items of them."""
    between = (space.means + np.roll(space.means, 1, axis=0)) / 2
    score = HEADS[name](space.known(), old, 0)
    return auroc(score(space.around(between, 20, 3)), score(space.around(space.means, 20, 2)))


@pytest.mark.parametrize("name", [name for name in HEADS if name not in UNFIT])
def test_what_lies_between_the_classes_scores_less_familiar_than_fresh_items_of_them(name, space, old):
    assert auc_of_what_lies_between(name, space, old) > 0.9


@pytest.mark.parametrize("name", UNFIT)
def test_what_is_published_for_other_networks_does_not_hold_at_this_width(name, space, old):
    assert auc_of_what_lies_between(name, space, old) < 0.85


@every_head
def test_the_same_seed_gives_the_same_head_and_leaves_the_global_state(name, space, old):
    items = space.around(space.means, 3, 4)
    before = torch.get_rng_state()
    first, again, other = (HEADS[name](space.known(), old, seed, SHORT)(items) for seed in (5, 5, 6))
    assert torch.equal(before, torch.get_rng_state())
    assert first.dtype == np.float64
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@every_head
def test_a_first_step_and_a_step_with_exemplars_alone_have_a_head_too(name, space, old):
    items = space.around(space.means, 3, 4)
    for which in (np.zeros_like(old), np.ones_like(old)):
        assert np.isfinite(HEADS[name](space.known(), which, 0, SHORT)(items)).all()


@every_head
def test_evidence_of_another_network_is_refused(name, space, old):
    score = HEADS[name](space.known(8), old[::3], 0, SHORT)
    other = Evidence(np.zeros((2, 6), "f"), np.zeros((2, 5), "f"), np.zeros((2, 0), "f"), np.zeros(2, "f"))
    with pytest.raises(EvidenceError):
        score(other)

"""The gate's weights, learnt where the family that they are to tell had no part."""

from dataclasses import replace

import numpy as np
import pytest

from updater.benchmark import gate_weights
from updater.benchmark.gate_weights import REGISTRY, best, measure
from updater.candidate.power import RECIPE


class Telling:
    """Tells a family the better, the more one score weighs beside all others."""

    def __init__(self, score):
        self.score = score

    def told(self, family, weights):
        assert family == self.score
        return weights[family] / sum(weights.values())


def test_the_weights_learnt_are_those_that_tell_best_and_some_weight_is_left():
    alone = best({"novelty": Telling("novelty")})
    assert {name for name, weight in alone.items() if weight} == {"novelty"}
    both = best({name: Telling(name) for name in ("novelty", "energy")})
    assert {name for name, weight in both.items() if weight} == {"novelty", "energy"}


def test_weights_that_tell_no_better_stay_the_registrys():
    class Deaf:
        def told(self, family, weights):
            return 0.5

    assert best({"a": Deaf()}) == REGISTRY


@pytest.fixture
def learnt(stream, small, kinds, tmp_path, monkeypatch, silent):
    """What was measured on the smallest stream, and by which networks weights were learnt for each family."""
    monkeypatch.setattr(gate_weights, "RECIPE", replace(RECIPE, balanced_steps=4, batch=8))
    asked, found = [], gate_weights.best

    def looked_at(inner):
        asked.append(inner)
        return found(inner)

    monkeypatch.setattr(gate_weights, "best", looked_at)
    learnt, compared = measure(stream, small, [0], kinds, tmp_path, silent)
    return {one.family: (one.weights, inner) for one, inner in zip(learnt, asked, strict=True)}, compared


def test_the_outer_family_has_no_part_in_what_its_weights_are_learnt_from(learnt):
    by_family, _ = learnt
    assert set(by_family) == {"a", "b", "c"}
    for family, (_, inner) in by_family.items():
        assert set(inner) == {"a", "b", "c"} - {family}
        for other, network in inner.items():
            known = {*network.parts["train"].families, *network.parts["held"].families}
            forged = {name[0] for name in known if not name.endswith("/real")}
            assert forged == {"a", "b", "c"} - {family, other}
            assert {name[0] for name in known if name.endswith("/real")} == {"a", "b", "c"}


def test_both_weights_are_compared_on_the_same_draws(learnt):
    _, compared = learnt
    assert set(compared) == {"within source", "against all tests"}
    for one in compared.values():
        assert min(one.registry, one.learnt) >= 0
        assert max(one.registry, one.learnt) <= 1
        assert one.low <= one.high
    by_family, _ = learnt
    same = all(weights == REGISTRY for weights, _ in by_family.values())
    assert same or any(one.high - one.low > 0 for one in compared.values())


def test_twice_the_weights_are_twice_the_score(learnt):
    by_family, _ = learnt
    network = next(iter(by_family["a"][1].values()))
    doubled = {name: 2 * weight for name, weight in REGISTRY.items()}
    scores = network.scores("tests", REGISTRY)
    np.testing.assert_allclose(network.scores("tests", doubled), 2 * scores, rtol=1e-4, atol=1e-4)
    assert np.isfinite(scores).all()


def test_two_families_are_too_few(stream, small, kinds, tmp_path, silent):
    two = replace(stream, tasks=stream.tasks[:2])
    with pytest.raises(ValueError, match="three tasks at least"):
        measure(two, small, [0], kinds, tmp_path, silent)

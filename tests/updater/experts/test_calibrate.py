"""An expert is calibrated on held-back reals, each source weighing the same, and votes where it can."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from updater.experts.calibrate import (
    BASE_WEIGHT,
    PROVEN_WEIGHT,
    SHARES,
    calibrated_experts,
    log_odds,
    scale_of_reals,
    share_of_vote,
    term_weight,
)

CLASSES = ("real", "blocky")


@pytest.fixture
def held(labelled):
    """Items of two sources, 40 reals of a, 10 of b, and as many forgeries of each."""
    return replace(labelled({"real": 50, "blocky": 50}), sources=(("a",) * 40 + ("b",) * 10) * 2)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def reals_of(items, source=None):
    real = np.array(items.families) == "real"
    return real if source is None else real & (np.array(items.sources) == source)


def test_one_cameras_offset_widens_nothing_and_each_source_weighs_the_same(held, rng):
    logits = rng.normal(0, 1, 100).astype(np.float32)
    shifted = logits + 20 * (np.array(held.sources) == "b")
    (median, scale, sources), (moved, after, _) = (
        scale_of_reals(values.astype(np.float32), held) for values in (logits, shifted)
    )
    assert sources == 2
    assert after == pytest.approx(scale)
    assert moved == pytest.approx(median + 10)


def test_forgeries_have_no_say_in_it(held, rng):
    logits = rng.normal(0, 1, 100).astype(np.float32)
    other = np.where(reals_of(held), logits, 50).astype(np.float32)
    assert scale_of_reals(logits, held) == scale_of_reals(other, held)


def test_sources_of_few_groups_say_nothing_of_the_spread_unless_there_are_no_others(held, rng):
    logits = rng.normal(0, 1, 100).astype(np.float32)
    alone = replace(held, sources=tuple(str(number) for number in range(100)))
    _, scale, sources = scale_of_reals(logits, alone)
    assert sources == 50
    assert scale == pytest.approx(1, abs=0.4)
    names = np.array(held.sources)
    names[:4] = [f"few-{number // 2}" for number in range(4)]
    far = logits + np.where(np.char.startswith(names, "few"), 30, 0)
    assert scale_of_reals(far.astype(np.float32), replace(held, sources=tuple(names)))[1] < 2


def test_log_odds_are_those_of_two_normal_distributions(held, rng):
    logits = rng.normal(0, 1, 100).astype(np.float32) + 2 * ~reals_of(held)
    slope, offset = log_odds(logits.astype(np.float32), held)
    assert slope == pytest.approx(2, rel=0.4)
    assert -offset / slope == pytest.approx(1, abs=0.3)


@pytest.fixture
def said(held, contract):

    def said(logits, network, odds=None):
        items = replace(held, expert_logits=logits.astype(np.float32)[:, None])
        return calibrated_experts([contract], items, network, CLASSES, odds=odds)

    return said


def test_an_expert_that_knows_nothing_has_no_vote(held, said, rng):
    for logits in (rng.normal(0, 1, 100), rng.normal(0, 1, 100) - 3 * ~reals_of(held)):
        found = said(logits, torch.zeros(100, 2))
        assert found.experts[0].slope == pytest.approx(0, abs=0.3)
    assert found.experts[0].slope == 0
    assert not found.vote.any()


def test_one_that_knows_them_votes_beside_a_network_that_does_not(held, said, rng):
    votes = said(rng.normal(0, 1, 100) + 4 * ~reals_of(held), torch.zeros(100, 2)).vote
    assert (votes[:, 0] == 0).all()
    assert ((votes[:, 1] > 0).numpy() == ~reals_of(held)).mean() > 0.9


def test_its_share_is_what_it_adds_where_sources_were_left_out(held, said, rng):
    logits = rng.normal(0, 1, 100) + 4 * ~reals_of(held)
    sure = torch.stack([torch.zeros(100), torch.from_numpy(np.where(reals_of(held), -20.0, 20.0))], 1).float()
    odds = np.where(np.arange(100) % 2, 0.0, np.nan)
    alone, left_out = (said(logits, sure, of).experts[0].slope for of in (None, odds))
    assert alone == 0
    assert left_out == pytest.approx(said(logits, torch.zeros(100, 2)).experts[0].slope, rel=0.5)


def test_a_forgery_that_the_network_knows_is_no_surprise(held, said, rng):
    logits = rng.normal(0, 1, 100) + 6 * ~reals_of(held)
    sure = torch.stack([torch.zeros(100), torch.where(torch.from_numpy(~reals_of(held)), 12.0, -12.0)], 1)
    blind = torch.stack([torch.zeros(100), torch.full((100,), -12.0)], 1)
    found = said(logits, sure)
    (of_sure,), (of_blind,) = (list(found.scores(network).values()) for network in (sure, blind))
    assert of_sure[~reals_of(held)].max() < 0.01
    assert np.median(of_blind[~reals_of(held)]) > 3
    assert np.allclose(of_sure[reals_of(held)], of_blind[reals_of(held)], atol=1e-3)


def test_no_real_is_an_error(held):
    items = held.take(np.flatnonzero(~reals_of(held)))
    with pytest.raises(ValueError, match="no held-back item is real"):
        scale_of_reals(np.zeros(50, np.float32), items)


def test_what_is_proven_on_known_forgeries_weighs_more_and_nothing_proven_keeps_a_part(held, rng):
    noise, forged = rng.normal(0, 1, 100), ~reals_of(held)
    weights = [term_weight((noise + apart * forged).astype("f"), held) for apart in (0, 1, 2, 20)]
    assert weights[0] == BASE_WEIGHT
    assert weights == sorted(weights)
    assert weights[-1] == BASE_WEIGHT + PROVEN_WEIGHT
    logits = np.array([0, 1, 1, 2], np.float32)
    assert term_weight(logits, held.take([0, 1, 50, 51])) == BASE_WEIGHT
    assert term_weight(logits[:2], held.take([0, 1])) == BASE_WEIGHT


def test_a_vote_that_knows_nothing_has_no_share_and_one_that_knows_more_has_a_large_one():
    rng = np.random.default_rng(0)
    families = ["real", "gan"] * 200
    right = torch.tensor([[1.0, -1], [-1, 1]]).repeat(200, 1)
    noise = torch.from_numpy(rng.normal(size=(400, 2))).float()
    even = np.full(400, 1 / 400)
    own = 0.5 * right + noise
    assert share_of_vote(own, 3 * noise[torch.randperm(400)], families, ("real", "gan"), even) < 0.2
    assert share_of_vote(own, right, families, ("real", "gan"), even) == SHARES[-1]
    wrong_counts = np.where(np.arange(400) < 200, 1.0, 0.0)
    half = torch.cat([right[:200], -right[200:]])
    assert share_of_vote(own, half, families, ("real", "gan"), wrong_counts) == SHARES[-1]
    assert share_of_vote(own, half, families, ("real", "gan"), 1 - wrong_counts) == 0


def test_a_vote_that_is_forty_times_too_sure_is_given_a_fortieth():
    rng = np.random.default_rng(1)
    truth = rng.normal(size=4000)
    families = [
        "gan" if chance < 1 / (1 + np.exp(-2 * own)) else "real"
        for own, chance in zip(truth, rng.random(4000), strict=True)
    ]
    right = torch.from_numpy(np.stack([-truth, truth], 1)).float()
    assert share_of_vote(
        torch.zeros(4000, 2), 40 * right, families, ("real", "gan"), np.full(4000, 1 / 4000)
    ) == pytest.approx(1 / 40, rel=0.12)

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit
from scipy.stats import binom

from detector.model.scores import SCORES, NetworkOutput
from detector.release.experts import CarriedExpert
from detector.release.manifest import GateParameters, Term
from updater.candidate.calibrate import fit_gate
from updater.candidate.evaluate import labels_of, unknown_scores
from updater.candidate.gate_inputs import GateInputs, Part
from updater.candidate.left_out import first_sight, left_out_odds
from updater.candidate.thresholds import (
    TARGETS,
    LiveCalls,
    Targets,
    conservative_share,
    fake_threshold,
    keeping_fake,
    keeping_known,
    source_thresholds,
    unknown_threshold,
)
from updater.data.training_data import LabelledCrops
from updater.experts.calibrate import ExpertsSay
from updater.training.sums import on_grid


@given(st.integers(1, 600), st.floats(0.005, 0.2), st.floats(0.5, 0.99))
def test_a_conservative_share_is_the_largest_that_keeps_its_confidence(count, share, confidence):
    above = round(conservative_share(count, share, confidence) * count)
    # Were the true share just `share`, so few above would be seen with a chance of 1 - confidence at most.
    if above > 0:
        assert binom.cdf(above, count, share) <= 1 - confidence + 1e-9
    assert binom.cdf(above + 1, count, share) > 1 - confidence - 1e-9


def threshold(scores, *, reals=0.05, classes=1.0):
    families = np.array([family for family, of in scores.items() for _ in of])
    unknown = np.concatenate(list(scores.values()))
    groups = np.array([f"group-{number}" for number in range(len(unknown))])
    real = np.array([family.endswith("real") for family in families])
    targets = Targets(reals_unknown=reals, classes_unknown=classes, confidence=0.5)
    return unknown_threshold(unknown, families, groups, np.full(len(unknown), ""), real, targets)


def quantiles(count, median=0.0, spread=1.0):
    """Scores at the quantiles of an exponential tail on both sides."""
    at = (np.arange(count) + 0.5) / count
    tail = np.where(at < 0.5, np.log(2 * at), -np.log(2 * (1 - at)))
    return (median + spread * tail / np.log(1 / 0.32)).astype("f")


def test_classes_of_one_shape_say_together_what_the_reals_say_alone():
    assert threshold(
        {"real": quantiles(400), "blended": quantiles(400, 5, 3), "smoothed": quantiles(400, -2)}
    ) == pytest.approx(threshold({"real": quantiles(400)}), abs=0.1)


def test_a_few_odd_reals_move_the_threshold_by_three_quarters_of_what_they_would_alone():
    usual, odd = quantiles(100), quantiles(100)
    odd[-6:] += 30
    others = {"blended": quantiles(400), "smoothed": quantiles(400)}
    moved = threshold({"real": odd} | others) - threshold({"real": usual} | others)
    # Among all classes the six are so few that the shape hardly feels them.
    assert moved == pytest.approx(30 * 3 / 4, abs=1.5)


def test_the_classes_share_holds_where_it_asks_for_more():
    far = {"real": quantiles(400), "blended": quantiles(400, 20)}
    assert threshold(far) < 10
    # Of the two classes' mean, nearly all is the far one's. Above its median, its tail is 0.32 of itself a
    # spread later, so this is the share of fresh items.
    assert 0.5 * 0.32 ** (threshold(far, classes=0.1) - 20) == pytest.approx(0.2, abs=0.005)


def test_the_reals_of_all_sources_count_together_whatever_their_names():
    near, far = quantiles(200), quantiles(200, 3)
    one_way = threshold({"a/real": near, "b/real": far, "blended": quantiles(200)})
    assert threshold({"b/real": near, "a/real": far, "blended": quantiles(200)}) == one_way


def test_scores_without_spread_are_their_own_threshold():
    assert threshold({"real": np.ones(40, "f"), "blended": np.ones(40, "f")}) == 1.0


def test_one_other_item_among_near_duplicates_does_not_open_the_gate():
    others = {"real": quantiles(40), "blended": quantiles(40)}
    alike = np.zeros(20, "f")
    alike[0] = 1.0
    # Of so few, none may be above: the shape's farthest item counts.
    with_alike = threshold(others | {"smoothed": alike}, reals=0.005)
    assert with_alike == pytest.approx(threshold(others, reals=0.005), abs=1.5)


def test_the_fake_threshold_keeps_its_share_of_fresh_reals_as_surely_as_it_says():
    groups, sources, real = np.arange(200).astype(str), np.full(200, ""), np.ones(200, bool)
    rng, broken = np.random.default_rng(0), []
    for _ in range(400):
        seen = rng.uniform(0, 1, 200).astype("f")
        found = fake_threshold(seen, groups, sources, real, Targets(reals_fake=0.1))
        # Of fresh reals, whose probabilities are even in 0..1, so many are above it.
        broken.append(1 - found > 0.1)
    assert 0.1 <= np.mean(broken) <= 0.25


def test_the_classes_that_are_live_are_called_unknown_two_points_more_often_at_most():
    families = np.array(["real"] * 100 + ["blended"] * 50 + ["new"] * 400)
    groups = np.array([str(number) for number in range(len(families))])
    known = families != "new"
    unknown = np.concatenate([np.arange(100), np.arange(0, 100, 2), np.full(400, -5.0)]).astype("f")
    # Live: 4 of 100 reals and 3 of 50 blended are unknown, 5 % on average; so 7 % may be.
    said = np.zeros(len(families), bool)
    said[[0, 1, 2, 3, 100, 101, 102]] = True
    found = keeping_known(unknown, families, groups, LiveCalls(known, said, np.zeros(len(families), bool)))
    shares = [float((unknown[families == name] > found).mean()) for name in ("real", "blended")]
    assert np.mean(shares) == pytest.approx(0.07, abs=0.011)
    assert keeping_known(unknown, families, groups, LiveCalls(known, known, known)) <= unknown[known].min()


def keeping(said, reals_at):
    """The fake threshold where the live release calls so many of 100 forgeries fake, and reals lie below."""
    families = np.array(["real"] * 100 + ["blended"] * 100 + ["new"] * 100)
    groups = np.array([str(number) for number in range(300)])
    probability = np.concatenate([np.full(100, reals_at), np.arange(100) / 100, np.zeros(100)]).astype("f")
    live = LiveCalls(families != "new", np.zeros(300, bool), np.arange(300) >= 200 - said)
    real, sources = families == "real", np.full(300, "")
    return keeping_fake(probability, families, groups, sources, real, live, 0.04)


def test_as_many_forgeries_of_live_families_stay_fake_as_the_reals_allow():
    assert keeping(90, reals_at=0.01) == pytest.approx(0.09, abs=0.011)
    assert keeping(60, reals_at=0.01) == pytest.approx(0.39, abs=0.011)
    assert keeping(90, reals_at=0.3) == pytest.approx(0.3)


def test_what_is_kept_of_some_items_is_theirs_alone():
    calls = LiveCalls(*(np.array(one, bool) for one in ([1, 1, 0], [0, 1, 1], [1, 0, 1])))
    some = calls.take(np.array([True, False, True]))
    assert [one.tolist() for one in (some.known, some.unknown, some.fake)] == [
        [True, False],
        [False, True],
        [True, True],
    ]


def test_where_the_only_live_family_is_left_out_nothing_is_kept_of_its_forgeries():
    families = np.array(["real", "real", "new"])
    live = LiveCalls(*(np.array(one, bool) for one in ([1, 1, 0], [0, 0, 0], [0, 0, 1])))
    probability = np.array([0.1, 0.2, 0.9], np.float32)
    assert keeping_fake(probability, *[families] * 3, families == "real", live, 0.04) == 1


POOLED = GateParameters(
    terms={"energy": Term(median=0, scale=1, weight=1)}, clip=6, unknown_threshold=3, fake_threshold=0.5
)


def own(unknown, fake=None, families=None, groups=None, live=None, source="camera"):
    """The thresholds of one source alone; each item is real and its own group, unless said otherwise."""
    count = len(unknown)
    named = np.array(families or ["real"] * count)
    return source_thresholds(
        POOLED,
        np.asarray(unknown, np.float32),
        np.full(count, 0.1, np.float32) if fake is None else np.asarray(fake, np.float32),
        named,
        np.array(groups or [f"group-{i}" for i in range(count)]),
        np.array([source] * count),
        named == "real",
        live,
        TARGETS,
    )


def test_a_source_has_its_own_from_twenty_groups_of_reals_on_and_an_unnamed_one_never():
    scores = np.linspace(-1, 1, 20)
    assert own(scores[:19]) == {}
    assert own(scores, source="") == {}
    # Pieces of one photograph are one witness, and a forgery says nothing of reals.
    assert own(np.linspace(-1, 1, 60), groups=[f"photograph-{i % 19}" for i in range(60)]) == {}
    assert own(scores, families=["real"] * 19 + ["blend"]) == {}
    found = own(scores)["camera"]
    assert found.groups == 20
    assert found.unknown_threshold == pytest.approx(1)


def drawn(seed, count, mean=-2.0):
    """Unknown scores and fake probabilities of reals, that have nothing to do with each other."""
    rng = np.random.default_rng(seed)
    return rng.normal(mean, 1, count), rng.beta(1, 9, count)


@pytest.mark.parametrize(("count", "share"), [(20, 1 / 21), (64, 3 / 65)])
def test_of_an_ordinary_sources_fresh_reals_no_more_are_unknown_or_fake_together_than_promised(count, share):
    lost, as_pooled = [], []
    for seed in range(400):
        found = own(*drawn(seed, count))["camera"]
        unknown, fake = drawn(1000 + seed, 200)
        lost.append(((unknown > found.unknown_threshold) | (fake > found.fake_threshold)).mean())
        as_pooled.append(((unknown > POOLED.unknown_threshold) | (fake > POOLED.fake_threshold)).mean())
    assert np.mean(lost) == pytest.approx(share, abs=0.008)
    assert np.mean(as_pooled) < 0.01


def test_one_odd_group_of_twenty_raises_nothing_and_a_tenth_a_clipped_score_at_most():
    ordinary, fake = np.linspace(-2, 2, 20), np.linspace(0.1, 0.3, 20)
    odd = ordinary.copy()
    odd[-1] = 1000
    found = own(odd, fake)["camera"]
    pooled = POOLED.unknown_threshold, POOLED.fake_threshold
    assert (found.unknown_threshold, found.fake_threshold) == pooled
    odd[-2] = 4
    assert own(odd, fake)["camera"].unknown_threshold == 4
    odd[-2] = 1000
    assert own(odd, fake)["camera"].unknown_threshold == POOLED.unknown_threshold + POOLED.clip


def test_a_source_whose_reals_look_fake_has_a_higher_fake_threshold_within_ten_times_the_odds():
    scores, fake = np.linspace(-2, 2, 30), np.linspace(0.1, 0.3, 30)
    fake[-3:] = 0.8
    assert own(scores, fake)["camera"].fake_threshold == pytest.approx(0.8)
    fake[-3:] = 0.999
    assert own(scores, fake)["camera"].fake_threshold == pytest.approx(10 / 11)
    # What is fake anyway leaves the unknown threshold no share to be lowered by.
    assert own(scores, fake)["camera"].unknown_threshold == POOLED.unknown_threshold


def test_what_the_live_release_names_of_a_source_is_not_lost_to_its_reals_being_ordinary():
    scores = np.concatenate([np.linspace(-3, -2, 40), np.linspace(-1, 0, 40)])
    fake = np.concatenate([np.full(40, 0.3), np.full(40, 0.2)])
    families = ["real"] * 40 + ["blend"] * 40
    everything, nothing = np.ones(80, bool), np.zeros(80, bool)
    alone = own(scores, fake, families)["camera"]
    kept = own(scores, fake, families, live=LiveCalls(everything, nothing, everything))["camera"]
    # Already without a live release, at most an eighth of the known classes is unknown, on average.
    assert -1 < alone.unknown_threshold < kept.unknown_threshold <= 0
    assert own(scores, fake, families, live=LiveCalls(nothing, everything, nothing))["camera"] == alone


def measured(rng, ordinary):
    count = len(ordinary)
    scores = {name: rng.normal(np.where(ordinary, -2, 0), 1).astype("f") for name in SCORES}
    fake = rng.uniform(0, 0.3, count).astype("f")
    return GateInputs(scores, fake, np.stack([np.log1p(-fake), np.log(fake)], 1))


def test_a_source_of_too_few_reals_for_its_own_is_not_outweighed_by_one_of_many():
    rng, shop = np.random.default_rng(0), np.arange(308) >= 300
    scores = {name: rng.normal(np.where(shop, 4, 0), 0.5).astype("f") for name in SCORES}
    fake = expit(rng.normal(np.where(shop, 0, -6), 0.5)).astype("f")
    inputs = GateInputs(scores, fake, np.stack([np.log1p(-fake), np.log(fake)], 1))
    lost = []
    for sources in (None, np.where(shop, "shop", "studio")):
        gate = fit_gate(inputs, np.full(308, "real"), np.arange(308).astype(str), sources=sources)
        unknown = unknown_scores(inputs, gate)[shop] > gate.unknown_threshold
        lost.append((float(unknown.mean()), float((fake[shop] > gate.fake_threshold).mean())))
    assert lost[0] == (1, 1)
    assert max(lost[1]) <= 1 / 8


def test_an_ordinary_source_is_judged_more_strictly_and_all_others_exactly_as_without_it():
    rng = np.random.default_rng(0)
    families = np.array(["real"] * 300 + ["blend"] * 60)
    sources = np.array(["studio"] * 100 + [f"place-{i}" for i in range(260)])
    inputs, groups = measured(rng, sources == "studio"), np.arange(360).astype(str)
    pooled = fit_gate(inputs, families, groups, sources=np.where(sources == "studio", "", sources))
    gate = fit_gate(inputs, families, groups, sources=sources)
    assert list(gate.sources) == ["studio"]
    assert gate.sources["studio"].unknown_threshold < pooled.unknown_threshold
    assert gate.model_copy(update={"sources": {}}) == pooled
    fresh = replace(measured(rng, np.zeros(400, bool)))
    unknown, fake = unknown_scores(fresh, gate), fresh.fake_probability
    as_before = labels_of(unknown, fake, pooled)
    for others in (None, ["place-0"] * 400, ["never seen"] * 400, [""] * 400):
        assert labels_of(unknown, fake, gate, sources=others).tolist() == as_before.tolist()
    strict = labels_of(unknown, fake, gate, sources=["studio"] * 400)
    assert (strict == "unknown").sum() > 2 * (as_before == "unknown").sum()


# What sources that are new to a release are judged by: a threshold on fakeness, set on sources left out.
@pytest.fixture
def part():
    """Makes items of sources that each lie elsewhere, with what a network of frozen features says of them."""

    def part(sources, seed, each=60, width=8):
        rng = np.random.default_rng(seed)
        rows, families, names = [], [], []
        for number, source in enumerate(sources):
            own = np.random.default_rng(number).normal(0, 0.5, width)
            for family, shift in (("real", 0.0), ("a", 1.5)):
                rows.append(rng.normal(0, 0.6, (each, width)) + own + shift * (np.arange(width) == 0))
                families += [family] * each
                names += [source] * each
        grid = on_grid(np.concatenate(rows).clip(-3, 3))
        empty = torch.zeros(len(grid), 0)
        ids = tuple(f"{seed}-{number}" for number in range(len(grid)))
        crops = np.zeros((len(grid), 1, 1, 3), np.uint8)
        items = LabelledCrops(ids, tuple(families), tuple(names), ids, crops, np.arange(len(grid) + 1))
        return Part(items, NetworkOutput(empty, empty, empty, empty), grid)

    return part


def at_first_sight(train, calibration, live=None, experts=None):
    odds = left_out_odds(train, calibration, None)
    return first_sight((train.items, calibration.items), odds, live, 0.05, experts)


SOURCES = [f"camera-{number}" for number in range(12)]


def test_what_lies_above_fakeness_at_first_sight_is_set_where_sources_can_be_left_out(part):
    found = at_first_sight(part(SOURCES, 0), part(SOURCES, 1), None)
    assert found.sources == tuple(sorted(SOURCES))
    assert 0 < found.fake_threshold < 1
    # Of one source alone nothing is left out.
    assert at_first_sight(part(SOURCES[:1], 0), part(SOURCES[:1], 1), None) is None


def test_with_too_few_sources_the_live_threshold_stays_and_new_ones_are_known(part):
    live = at_first_sight(part(SOURCES, 0), part(SOURCES, 1), None)
    few = at_first_sight(part(["mine"], 2), part(["mine"], 3), live)
    assert few.fake_threshold == live.fake_threshold
    assert few.sources == tuple(sorted([*SOURCES, "mine"]))


def test_the_threshold_counts_what_experts_add(part):
    train, held = part(SOURCES, 0), part(SOURCES, 1)
    with_logits = [
        replace(one, items=replace(one.items, expert_logits=np.zeros((len(one.items), 1), np.float32)))
        for one in (train, held)
    ]
    about = {"name": "e", "input": "crop", "side_px": 64, "digest": "", "checkpoint": "", "licence": "MIT"}
    expert = CarriedExpert(**about, median=0, scale=1, reals=1, sources=1, offset=2.0)
    say = ExpertsSay((expert,), torch.zeros(1, 1), torch.tensor([False, True]), {})
    alone = logit(at_first_sight(train, held).fake_threshold)
    assert logit(at_first_sight(*with_logits, None, say).fake_threshold) == pytest.approx(alone + 2, abs=1e-3)

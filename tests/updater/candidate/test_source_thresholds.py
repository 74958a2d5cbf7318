from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from detector.model.scores import SCORES
from detector.release.manifest import GateParameters, Term
from updater.candidate.calibrate import fit_gate
from updater.candidate.evaluate import labels_of, unknown_scores
from updater.candidate.gate_inputs import GateInputs
from updater.candidate.thresholds import TARGETS, LiveCalls, source_thresholds

POOLED = GateParameters(
    terms={"energy": Term(median=0, scale=1, weight=1)}, clip=6, unknown_threshold=3, fake_threshold=0.5
)


def own(
    unknown: np.ndarray,
    fake: np.ndarray | None = None,
    families: list[str] | None = None,
    groups: list[str] | None = None,
    live: LiveCalls | None = None,
    source: str = "camera",
):
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


def drawn(seed: int, count: int, mean: float = -2.0) -> tuple[np.ndarray, np.ndarray]:
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
    found = own(scores, fake)["camera"]
    assert found.fake_threshold == pytest.approx(0.8)
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
    strange = LiveCalls(nothing, everything, nothing)
    assert own(scores, fake, families, live=strange)["camera"] == alone


def measured(rng: np.random.Generator, ordinary: np.ndarray) -> GateInputs:
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

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from detector.model.graph import Surroundings, leaning
from detector.model.scores import NetworkOutput, fused
from detector.release.artifact import Reference
from detector.release.manifest import GateParameters
from updater.candidate.calibrate import fake_probabilities_around, fit_gate, unknown_scores
from updater.candidate.gate_inputs import gate_inputs
from updater.candidate.reference_set import make_reference
from updater.candidate.thresholds import (
    LiveCalls,
    conservative_share,
    fake_threshold,
    keeping_fake,
    keeping_known,
    unknown_threshold,
)


@given(st.integers(1, 600), st.floats(0.005, 0.2), st.floats(0.5, 0.99))
def test_a_conservative_share_is_the_largest_that_keeps_its_confidence(
    count: int, share: float, confidence: float
) -> None:
    above = round(conservative_share(count, share, confidence) * count)
    # Were the true share just `share`, so few above would be seen with a chance of 1 - confidence at most.
    if above > 0:
        assert binom.cdf(above, count, share) <= 1 - confidence + 1e-9
    assert binom.cdf(above + 1, count, share) > 1 - confidence - 1e-9


def threshold(scores: dict[str, np.ndarray], *, reals: float = 0.05, classes: float = 1.0) -> float:
    families = np.array([family for family, of in scores.items() for _ in of])
    unknown = np.concatenate(list(scores.values()))
    groups = np.array([f"group-{number}" for number in range(len(unknown))])
    real = np.array([family.endswith("real") for family in families])
    return unknown_threshold(unknown, families, groups, real, reals=reals, classes=classes, confidence=0.5)


def quantiles(count: int, median: float = 0.0, spread: float = 1.0) -> np.ndarray:
    """Scores at the quantiles of an exponential tail on both sides."""
    at = (np.arange(count) + 0.5) / count
    tail = np.where(at < 0.5, np.log(2 * at), -np.log(2 * (1 - at)))
    return (median + spread * tail / np.log(1 / 0.32)).astype("f")


def test_classes_of_one_shape_say_together_what_the_reals_say_alone() -> None:
    alone = threshold({"real": quantiles(400)})
    wide = threshold(
        {"real": quantiles(400), "blended": quantiles(400, 5, 3), "smoothed": quantiles(400, -2)}
    )
    assert wide == pytest.approx(alone, abs=0.1)


def test_a_few_odd_reals_move_the_threshold_by_three_quarters_of_what_they_would_alone() -> None:
    usual, odd = quantiles(100), quantiles(100)
    odd[-6:] += 30
    others = {"blended": quantiles(400), "smoothed": quantiles(400)}
    moved = threshold({"real": odd} | others) - threshold({"real": usual} | others)
    # Among all classes the six are so few that the shape hardly feels them.
    assert moved == pytest.approx(30 * 3 / 4, abs=1.5)


def test_the_classes_share_holds_where_it_asks_for_more() -> None:
    far = {"real": quantiles(400), "blended": quantiles(400, 20)}
    assert threshold(far) < 10
    # Of the two classes' mean, nearly all is the far one's. Above its median, its tail is 0.32 of itself a
    # spread later, so this is the share of fresh items.
    turned_away = 0.5 * 0.32 ** (threshold(far, classes=0.1) - 20)
    assert turned_away == pytest.approx(0.2, abs=0.005)


def test_the_reals_of_all_sources_count_together_whatever_their_names() -> None:
    near, far = quantiles(200), quantiles(200, 3)
    one_way = threshold({"a/real": near, "b/real": far, "blended": quantiles(200)})
    assert threshold({"b/real": near, "a/real": far, "blended": quantiles(200)}) == one_way


def test_scores_without_spread_are_their_own_threshold() -> None:
    assert threshold({"real": np.ones(40, "f"), "blended": np.ones(40, "f")}) == 1.0


def test_one_other_item_among_near_duplicates_does_not_open_the_gate() -> None:
    others = {"real": quantiles(40), "blended": quantiles(40)}
    alike = np.zeros(20, "f")
    alike[0] = 1.0
    # Of so few, none may be above: the shape's farthest item counts.
    with_alike = threshold(others | {"smoothed": alike}, reals=0.005)
    assert with_alike == pytest.approx(threshold(others, reals=0.005), abs=1.5)


def test_the_fake_threshold_keeps_its_share_of_fresh_reals_as_surely_as_it_says() -> None:
    families = np.array(["real"] * 200)
    groups = np.array([str(number) for number in range(200)])
    rng, broken = np.random.default_rng(0), []
    for _ in range(400):
        seen = rng.uniform(0, 1, 200).astype("f")
        found = fake_threshold(seen, families, groups, families == "real", reals=0.1, confidence=0.8)
        # Of fresh reals, whose probabilities are even in 0..1, so many are above it.
        broken.append(1 - found > 0.1)
    assert 0.1 <= np.mean(broken) <= 0.25


def test_the_classes_that_are_live_are_called_unknown_two_points_more_often_at_most() -> None:
    families = np.array(["real"] * 100 + ["blended"] * 50 + ["new"] * 400)
    groups = np.array([str(number) for number in range(len(families))])
    known = families != "new"
    unknown = np.concatenate([np.arange(100), np.arange(0, 100, 2), np.full(400, -5.0)]).astype("f")
    # Live: 4 of 100 reals and 3 of 50 blended are unknown, 5 % on average; so 7 % may be.
    said = np.zeros(len(families), bool)
    said[[0, 1, 2, 3, 100, 101, 102]] = True
    live = LiveCalls(known, said, np.zeros(len(families), bool))
    found = keeping_known(unknown, families, groups, live)
    shares = [float((unknown[families == name] > found).mean()) for name in ("real", "blended")]
    assert np.mean(shares) == pytest.approx(0.07, abs=0.011)
    everything = LiveCalls(known, known, known)
    assert keeping_known(unknown, families, groups, everything) <= unknown[known].min()


def keeping(said: int, reals_at: float) -> float:
    """The fake threshold where the live release calls so many of 100 forgeries fake, and reals lie below."""
    families = np.array(["real"] * 100 + ["blended"] * 100 + ["new"] * 100)
    groups = np.array([str(number) for number in range(300)])
    probability = np.concatenate([np.full(100, reals_at), np.arange(100) / 100, np.zeros(100)]).astype("f")
    fake = np.arange(300) >= 200 - said
    live = LiveCalls(families != "new", np.zeros(300, bool), fake)
    return keeping_fake(probability, families, groups, families == "real", live, reals=0.04)


def test_as_many_forgeries_of_live_families_stay_fake_as_the_reals_allow() -> None:
    assert keeping(90, reals_at=0.01) == pytest.approx(0.09, abs=0.011)
    assert keeping(60, reals_at=0.01) == pytest.approx(0.39, abs=0.011)
    assert keeping(90, reals_at=0.3) == pytest.approx(0.3)


def test_what_is_kept_of_some_items_is_theirs_alone() -> None:
    calls = LiveCalls(*(np.array(one, bool) for one in ([1, 1, 0], [0, 1, 1], [1, 0, 1])))
    some = calls.take(np.array([True, False, True]))
    assert [one.tolist() for one in (some.known, some.unknown, some.fake)] == [
        [True, False],
        [False, True],
        [True, True],
    ]


def test_where_the_only_live_family_is_left_out_nothing_is_kept_of_its_forgeries() -> None:
    families = np.array(["real", "real", "new"])
    live = LiveCalls(*(np.array(one, bool) for one in ([1, 1, 0], [0, 0, 0], [0, 0, 1])))
    probability = np.array([0.1, 0.2, 0.9], np.float32)
    assert keeping_fake(probability, families, families, families == "real", live, reals=0.04) == 1


WIDTH = 8
OLD = 400


def old(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, WIDTH))


def new(count: int, seed: int) -> np.ndarray:
    """A source whose items are unlike one another."""
    return 40 + 6 * np.random.default_rng(seed).standard_t(1.0, (count, WIDTH))


def blended(count: int, seed: int) -> np.ndarray:
    return old(count, seed) - 40


def output(*parts: np.ndarray) -> NetworkOutput:
    rows = torch.from_numpy(np.concatenate(parts).astype(np.float32))
    logits = torch.stack([torch.zeros(len(rows)), -rows.mean(1)], 1)
    return NetworkOutput(logits, torch.zeros(len(rows)), rows, rows)


def fitted(named: int) -> tuple[GateParameters, Reference]:
    """A gate that also knows so many items of the new source, a quarter of them held back."""
    families = ["real"] * (OLD + named) + ["blended"] * 100
    ids = [f"{number:04d}" for number in range(len(families))]
    reference = make_reference(output(old(OLD, 0), new(named, 1), blended(100, 2)), families, ids)
    held = output(old(200, 3), new(named // 4, 4), blended(100, 5))
    names = np.array(["real"] * (200 + named // 4) + ["blended"] * 100)
    groups = np.array([f"group-{number}" for number in range(len(names))])
    return fit_gate(gate_inputs(held, reference), names, groups), reference


def unknown(named: int, asked: np.ndarray) -> float:
    """The share of items that a release is called unknown by which learnt so many of the new source."""
    gate, reference = fitted(named)
    return float(
        (unknown_scores(gate_inputs(output(asked), reference), gate) > gate.unknown_threshold).mean()
    )


def odd(count: int, seed: int) -> np.ndarray:
    """Forgeries of the old source that nobody has named: as its reals, and a little off."""
    return 1.9 * old(count, seed)


def test_naming_a_new_source_costs_no_power_far_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unknown(0, new(100, 6)) > 0.9
    lost = unknown(0, odd(200, 7)) - unknown(80, odd(200, 7))
    turned_away = unknown(80, new(100, 6))
    assert turned_away < 0.25
    monkeypatch.setattr(Surroundings, "levels", lambda self, gate: torch.zeros(len(self._known)))
    lost_to_one_bound = unknown(0, odd(200, 7)) - unknown(80, odd(200, 7))
    assert lost_to_one_bound > 0.1
    assert lost < lost_to_one_bound / 2
    assert turned_away < unknown(80, new(100, 6)) - 0.1


def test_of_many_items_only_the_nearest_exemplars_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million items times all exemplars would fill the memory."""
    gate, reference = fitted(80)
    asked = output(old(40, 6), new(30, 7))
    whole = gate_inputs(asked, reference).around
    monkeypatch.setattr("updater.candidate.gate_inputs._ITEMS_AT_ONCE", 16)
    parts = gate_inputs(asked, reference).around
    assert whole is not None
    assert parts is not None
    assert whole.near.places.shape == whole.near.weight.shape == (70, 5)
    assert torch.equal(whole.near.places, parts.near.places)
    assert torch.allclose(whole.near.weight, parts.near.weight, atol=1e-5)
    assert torch.allclose(whole.lean(gate), parts.lean(gate), atol=1e-4)


def test_reals_are_not_fake_where_no_forgery_is_near() -> None:
    gate, reference = fitted(80)
    asked = output(new(60, 6))
    sure = asked._replace(logits=torch.tensor([[0.0, 3.0]]).repeat(60, 1))
    measured = gate_inputs(sure, reference)
    assert (measured.fake_probability > gate.fake_threshold).all()
    assert (fake_probabilities_around(measured, gate) < gate.fake_threshold).mean() > 0.6
    known = gate_inputs(output(blended(60, 7)), reference)
    assert (fake_probabilities_around(known, gate) > gate.fake_threshold).mean() > 0.95


def test_the_fake_probability_is_that_of_the_leaning_logits() -> None:
    gate, reference = fitted(80)
    measured = gate_inputs(output(new(60, 6), old(60, 8), blended(60, 7)), reference)
    assert measured.around is not None
    lean = measured.around.lean(gate)
    assert float(lean.abs().max()) > 1
    told = torch.softmax(leaning(torch.from_numpy(measured.logits), lean), 1)[:, 1]
    np.testing.assert_allclose(fake_probabilities_around(measured, gate), told, atol=1e-5)


def test_a_gate_that_knows_no_surroundings_scores_as_before_there_were_any() -> None:
    """Such as a live release's, which its successor asks by the network and this very gate."""
    gate, reference = fitted(80)
    assert gate.surroundings
    older = gate.model_copy(update={"surroundings": False})
    measured = gate_inputs(output(new(60, 6), old(60, 8)), reference)
    scores = {name: torch.from_numpy(values) for name, values in measured.scores.items()}
    assert np.array_equal(unknown_scores(measured, older), fused(scores, older).numpy())
    assert np.array_equal(fake_probabilities_around(measured, older), measured.fake_probability)
    assert not np.allclose(unknown_scores(measured, gate), unknown_scores(measured, older))
    assert not np.allclose(fake_probabilities_around(measured, gate), measured.fake_probability)

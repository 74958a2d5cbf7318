from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.covariance import LedoitWolf

from detector.model.network import Network
from detector.model.scores import SCORES, NetworkOutput
from detector.release.manifest import Architecture, decide
from updater.candidate.calibrate import calibrate, calibration_figures, fit_gate
from updater.candidate.evaluate import labels_of, unknown_scores
from updater.candidate.gate_inputs import GateInputs, part_of
from updater.candidate.reference_set import CalibrationError, equal_shares, make_reference
from updater.candidate.thresholds import LiveCalls, Targets, video_unknown_threshold
from updater.data.training_data import LabelledCrops
from updater.measures import within_class_whitening


def features(seed, families, width=12):
    rng = np.random.default_rng(seed)
    mixing = np.eye(width) + 0.2 * np.random.default_rng(9).normal(size=(width, width))
    centres = {f: np.random.default_rng(i).normal(0, 5, width) for i, f in enumerate(sorted(set(families)))}
    return np.stack([rng.normal(size=width) @ mixing + centres[f] for f in families]).astype("f")


def labelled(families, seed=0, side=64):
    return LabelledCrops(
        ids=tuple(f"{i:04d}" for i in range(len(families))),
        families=tuple(families),
        sources=("s",) * len(families),
        groups=tuple(f"{i:04d}" for i in range(len(families))),
        crops=np.random.default_rng(seed).integers(0, 255, (len(families), side, side, 3)).astype(np.uint8),
        starts=np.arange(len(families) + 1),
    )


def scored(families, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    n = len(families)
    scores = dict(zip(SCORES, rng.normal(0, spread, (len(SCORES), n)).astype("f"), strict=True))
    fake = np.where(families == "real", rng.beta(1, 9, n), rng.beta(9, 1, n)).astype("f")
    logits = np.stack([np.log(1 - fake + 1e-6), np.log(fake + 1e-6)], 1).astype("f")
    return GateInputs(scores, fake_probability=fake, logits=logits)


def output(seed, families):
    rows = torch.from_numpy(features(seed, families))
    return NetworkOutput(rows[:, :2], rows[:, 0], rows[:, 3:9], rows)


def apart(families):
    """Every item is its own group."""
    return np.array([f"group-{i}" for i in range(len(families))])


def test_whitened_classes_have_unit_covariance():
    families = ["real"] * 3000 + ["blended"] * 1000
    rows = features(0, families)
    mean, whitening = within_class_whitening(rows, np.array(families))
    white = (rows - mean) @ whitening
    for family in ("real", "blended"):
        assert np.allclose(np.cov(white[np.array(families) == family].T), np.eye(12), atol=0.25)


def test_the_whitening_is_scikit_learns_shrunk_covariance():
    families = ["real"] * 30 + ["blended"] * 12
    rows = features(1, families)
    _, whitening = within_class_whitening(rows, np.array(families))
    centred = np.concatenate([rows[:30] - rows[:30].mean(0), rows[30:] - rows[30:].mean(0)]).astype(float)
    scale = centred.std(0)
    covariance = LedoitWolf(assume_centered=True).fit(centred / scale).covariance_ * np.outer(scale, scale)
    assert np.allclose(whitening @ whitening.T, np.linalg.inv(covariance), rtol=1e-3, atol=1e-4)


def test_a_full_reference_gives_small_classes_all_their_places():
    families = ["real"] * 50 + ["blended"] * 5 + ["sharpened"] * 20
    chosen = equal_shares(np.array(families), np.array(labelled(families).ids), 40)
    kept = [families[i] for i in chosen]
    assert {f: kept.count(f) for f in set(kept)} == {"blended": 5, "real": 18, "sharpened": 17}
    assert len(set(chosen)) == 40


def test_a_full_reference_is_drawn_from_all_partitions_and_times():
    ids = np.array([f"forgewatch.media-{number % 2}-{number // 2}" for number in range(400)])
    chosen = np.array(equal_shares(np.array(["real"] * 400), ids, 100))
    assert 30 <= (chosen % 2 == 0).sum() <= 70, "half of the media came by each partition"
    assert 30 <= (chosen < 200).sum() <= 70, "and half of them early"


def test_a_reference_holds_features_and_embeddings_each_whitened():
    families = ["real"] * 50 + ["blended"] * 20
    made = make_reference(output(2, families), families, labelled(families).ids)
    raw = output(2, families)
    np.testing.assert_allclose(made.whiten(raw.features.numpy()), made.features, atol=1e-4)
    whitened = (raw.embedding.numpy() - made.embedding_mean) @ made.embedding_whitening
    np.testing.assert_allclose(whitened, made.embeddings, atol=1e-4)
    assert made.embeddings.shape == (70, 6)


def test_a_reference_counts_what_lies_between_sources_as_no_spread_within_a_class():
    families = ["real"] * 60
    raw = output(4, families)
    moved = raw._replace(features=raw.features + 40 * torch.eye(12)[0] * (torch.arange(60) >= 30)[:, None])

    def between(sources):
        white = make_reference(moved, families, labelled(families).ids, sources).features
        return float(np.linalg.norm(white[:30].mean(0) - white[30:].mean(0)))

    # Not told apart, the sources' distance is the class's own spread: two standard deviations of it.
    assert between(None) == pytest.approx(2, abs=0.3)
    assert between(["phone"] * 30 + ["studio"] * 30) > 5 * between(None)
    # A source with too few items for a mean is one with the other such sources.
    assert between([f"camera-{i}" for i in range(60)]) == between(None)


def test_a_reference_needs_items():
    with pytest.raises(CalibrationError, match="too few"):
        make_reference(output(3, ["real"] * 4), ["real"] * 4, "abcd")


@pytest.mark.parametrize("seed", range(3))
def test_thresholds_keep_their_shares_of_fresh_reals(seed):
    families = np.array(["real"] * 400 + ["blended"] * 60 + ["sharpened"] * 60)
    gate = fit_gate(
        scored(families, seed),
        families,
        apart(families),
        targets=Targets(reals_unknown=0.03, reals_fake=0.03),
    )
    of_fresh = scored(np.array(["real"] * 4000), seed + 100)
    assert (unknown_scores(of_fresh, gate) > gate.unknown_threshold).mean() <= 0.045
    assert (of_fresh.fake_probability > gate.fake_threshold).mean() <= 0.045


def test_each_term_of_the_gate_has_its_scores_scale_and_its_weight_of_the_registry():
    families = np.array(["real"] * 101)
    measured = scored(families)
    gate = fit_gate(measured, families, apart(families))
    assert list(gate.terms) == list(SCORES)
    for name, term in gate.terms.items():
        assert term.weight == SCORES[name].weight
        if SCORES[name].standard:
            assert (term.median, term.scale) == (0, 1)
            continue
        assert term.median == pytest.approx(np.median(measured.scores[name]))
        assert term.median + term.scale == pytest.approx(np.quantile(measured.scores[name], 0.84), abs=0.1)


def test_a_small_class_weighs_as_much_as_a_large_one():
    def measured(reals, blended, seed):
        families = np.array(["real"] * reals + ["blended"] * blended)
        found = scored(families, seed)
        found.scores["trace_novelty"][families == "blended"] += 5
        return found, families

    inputs, families = measured(900, 60, 0)
    gate = fit_gate(inputs, families, apart(families), targets=Targets(classes_unknown=0.05))
    fresh, of = measured(4000, 4000, 1)
    turned_away = unknown_scores(fresh, gate) > gate.unknown_threshold
    # A mean of 5 % over the two classes, nearly all of it of the far one; by items it would be half of it.
    assert 0.03 <= turned_away[of == "blended"].mean() <= 0.15
    assert turned_away[of == "real"].mean() <= 0.01


def test_a_gate_keeps_what_the_live_release_says_and_moves_towards_it_alone():
    families = np.array(["real"] * 200 + ["blended"] * 60)
    measured, groups = scored(families), apart(families)
    measured.fake_probability[families == "blended"] *= 0.5
    usual = fit_gate(measured, families, groups)
    everything, nothing = np.ones(len(families), bool), np.zeros(len(families), bool)
    lenient = fit_gate(measured, families, groups, LiveCalls(everything, nothing, everything))
    assert lenient.unknown_threshold > usual.unknown_threshold
    assert lenient.fake_threshold < usual.fake_threshold
    assert (measured.fake_probability[families == "real"] > lenient.fake_threshold).mean() <= 0.04
    assert fit_gate(measured, families, groups, LiveCalls(everything, everything, nothing)) == usual


def test_enough_real_videos_have_a_threshold_of_their_own_and_pictures_keep_theirs():
    families = np.array(["real"] * 300 + ["blended"] * 60)
    measured, groups = scored(families), apart(families)
    usual = fit_gate(measured, families, groups)
    for count, known in ((19, False), (20, True)):
        videos = np.zeros(len(families), bool)
        videos[:count] = True
        # A forged video says nothing of real ones.
        videos[300:] = True
        odd = replace(measured, scores={name: one.copy() for name, one in measured.scores.items()})
        odd.scores["novelty"][:count] += 3
        gate = fit_gate(odd, families, groups, videos=videos)
        assert (gate.video_unknown_threshold is not None) == known
        if known:
            assert gate.video_unknown_threshold == unknown_scores(odd, gate)[:count].max()
            assert gate.video_unknown_threshold > gate.unknown_threshold
            labels = labels_of(unknown_scores(odd, gate), np.zeros(len(videos)), gate, videos)
            assert "unknown" not in labels[:count]
            assert "unknown" in labels_of(unknown_scores(odd, gate), np.zeros(len(videos)), gate)[:count]
    assert usual.video_unknown_threshold is None


def test_videos_that_are_as_familiar_as_pictures_have_their_threshold():
    scores, groups = np.linspace(-3, 1, 40).astype("f"), apart(np.array(["real"] * 40))
    assert video_unknown_threshold(scores, groups, 2.0, reals=0.05) == 2
    assert video_unknown_threshold(scores, groups, 0.5, reals=0.05) == scores[-2]
    assert video_unknown_threshold(scores, groups, 0.5, reals=0.02) == scores[-1]
    # Pieces of one film are one witness.
    assert video_unknown_threshold(scores, np.array(["film"] * 40), 0.5, reals=0.05) is None


def test_many_pieces_of_one_odd_photograph_do_not_set_the_threshold():
    families = np.array(["real"] * 200 + ["blended"] * 40)
    measured, groups = scored(families), apart(families)
    usual = fit_gate(measured, families, groups)
    spread = float(unknown_scores(measured, usual).std())
    measured.scores["novelty"][:30] += 50
    groups[:30] = "photograph"
    odd = fit_gate(measured, families, groups)
    # Weighed by pieces, the threshold would move by nearly three times the spread.
    assert odd.unknown_threshold == pytest.approx(usual.unknown_threshold, abs=0.5 * spread)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Network(Architecture(backbone="lcnet_035", crop_px=64, width=8), 2).eval()


def part(network, items):
    return part_of(network, items, torch.device("cpu"), "stage", lambda *at: None)


def unknown_of_fresh_reals(network, train, calibration):
    """Return which share of reals that nothing was fitted on are above the threshold."""
    held = part(network, calibration)
    judge = calibrate(network, part(network, train), held, ("real", "blended"))
    gate, figures = judge.gate, calibration_figures(judge, held)
    assert figures["calibration_reals"] == calibration.families.count("real")
    assert figures["reals_unknown"] <= 0.05
    assert decide(gate.unknown_threshold, 0.0, gate) == "real"
    fresh = judge.calls(part(network, labelled(["real"] * 150, seed=3)))
    return float((fresh.unknown > gate.unknown_threshold).mean())


@pytest.mark.slow
def test_a_networks_gate_lets_fresh_reals_pass_where_its_calibration_items_were_not_trained_on(network):
    train = labelled(["real"] * 40 + ["blended"] * 16, seed=1)
    assert unknown_of_fresh_reals(network, train, labelled(["real"] * 80 + ["blended"] * 16, seed=2)) <= 0.08
    # What the reference set holds is its own nearest: thresholds on that say nothing of fresh reals.
    assert unknown_of_fresh_reals(network, train, train) >= 0.5


def test_without_a_held_back_real_there_is_no_gate(network):
    held = part(network, labelled(["blended"] * 4))
    with pytest.raises(CalibrationError, match="no real item"):
        calibrate(network, part(network, labelled(["real"] * 12)), held, ("real", "blended"))

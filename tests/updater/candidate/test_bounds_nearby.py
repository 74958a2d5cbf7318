"""Where a release's bounds lie after a new source was named real: wider near it, and nowhere else."""

import numpy as np
import pytest
import torch

from detector.model.graph import Surroundings, leaning
from detector.model.scores import NetworkOutput, fused
from detector.release.artifact import Reference
from detector.release.manifest import GateParameters
from updater.candidate.calibrate import (
    fake_probabilities_around,
    fit_gate,
    gate_inputs,
    unknown_scores,
)
from updater.candidate.reference_set import make_reference

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
    monkeypatch.setattr("updater.candidate.calibrate._ITEMS_AT_ONCE", 16)
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

"""What sources that are new to a release are judged by: a threshold on fakeness, set on sources left out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logit

from detector.model.scores import NetworkOutput
from detector.release.experts import CarriedExpert
from updater.candidate.gate_inputs import Part
from updater.candidate.left_out import first_sight, left_out_odds
from updater.data.training_data import LabelledCrops
from updater.experts.calibrate import ExpertsSay
from updater.training.sums import on_grid


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

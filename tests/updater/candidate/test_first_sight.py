"""What sources that are new to a release are judged by: a threshold on fakeness, set on sources left out."""

import numpy as np
import pytest
import torch

from detector.model.scores import NetworkOutput
from updater.candidate.left_out import Part, first_sight
from updater.data.training_data import LabelledCrops
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


SOURCES = [f"camera-{number}" for number in range(12)]


def test_what_lies_above_fakeness_at_first_sight_is_set_where_sources_can_be_left_out(part):
    found = first_sight(part(SOURCES, 0), part(SOURCES, 1), None, None, 0.05)
    assert found.sources == tuple(sorted(SOURCES))
    assert 0 < found.fake_threshold < 1
    # Of one source alone nothing is left out.
    assert first_sight(part(SOURCES[:1], 0), part(SOURCES[:1], 1), None, None, 0.05) is None


def test_with_too_few_sources_the_live_threshold_stays_and_new_ones_are_known(part):
    live = first_sight(part(SOURCES, 0), part(SOURCES, 1), None, None, 0.05)
    few = first_sight(part(["mine"], 2), part(["mine"], 3), None, live, 0.05)
    assert few.fake_threshold == live.fake_threshold
    assert few.sources == tuple(sorted([*SOURCES, "mine"]))

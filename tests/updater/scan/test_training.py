"""The head over time is trained on clips: it learns what stands out in its own clip, the same each time."""

import numpy as np
import pytest
import torch

from detector.features.cell_traces import CELL_WIDTH
from updater.scan.clips import ScannedClip, scanned
from updater.scan.training import frame_scores, train_scanner


def clips_of(seed: int, count: int) -> list[ScannedClip]:
    """Clips whose forged frames differ from their own others, and from no other clip's frames."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        frames = int(rng.integers(30, 50))
        features = rng.normal(size=(frames, 8)) + rng.normal(0, 6, 8)
        stretch = []
        if number % 2:
            first = int(rng.integers(0, frames - 10))
            features[first : first + 10, 0] += 4
            stretch = [(first, first + 10)]
        cells = rng.normal(size=(frames, CELL_WIDTH))
        made.append(scanned(np.concatenate([features, cells], 1).astype(np.float32), stretch))
    return made


@pytest.mark.slow
def test_it_finds_frames_that_deviate_from_their_own_clip():
    scanner = train_scanner(clips_of(0, 40), 0, epochs=60)
    inside, outside = [], []
    for clip in clips_of(1, 20):
        scores = frame_scores(scanner, clip)
        inside += [*scores[clip.forged]]
        outside += [*scores[~clip.forged]]
    assert np.mean(inside) > 0.7
    assert np.mean(outside) < 0.1


def test_the_same_seed_gives_the_same_weights_and_leaves_torchs_own_draws_alone():
    clips = clips_of(0, 6)
    torch.manual_seed(9)
    first = train_scanner(clips, 3, epochs=2)
    drawn = torch.rand(1)
    torch.manual_seed(9)
    assert torch.equal(drawn, torch.rand(1))
    second = train_scanner(clips, 3, epochs=2)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    other = train_scanner(clips, 4, epochs=2)
    assert not torch.equal(first.members[0].end.weight, other.members[0].end.weight)


def test_clips_that_are_all_real_train_nothing():
    with pytest.raises(ValueError, match="forged frames"):
        train_scanner(clips_of(0, 1), 0)


def test_a_stretch_beyond_the_frames_is_refused():
    with pytest.raises(ValueError, match="10 frames"):
        scanned(np.zeros((10, 2), np.float32), [(4, 11)])

"""The stream's media in ForgeryNet's layout: what its reader reads back is what was forged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from updater.benchmark.forgerynet.choices import with_own_names
from updater.benchmark.synthetic import forgerynet, in_part
from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.forgerynet import DIRECTORIES, directory_of
from updater.benchmark.synthetic.stream import REAL
from updater.data.layouts.forgerynet import load_forgerynet

SPLITS = {"train": "train", "stream": "val", "after": "test"}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Every sample that is written, with its split, all of seed 7; clips of 24 frames."""
    samples: list[tuple[str, Any]] = []
    makers = {name: getattr(forgerynet, name) for name in ("make_local", "make_clip")}
    for name, make in makers.items():

        def spy(seed: int, split: str, *number: Any, make=make):
            assert seed == 7
            samples.append((split, make(seed, split, *number)))
            return samples[-1][1]

        monkeypatch.setattr(forgerynet, name, spy)
    monkeypatch.setattr(in_part, "FRAMES", 24)
    return samples


def test_every_picture_is_read_back_with_its_family_and_its_truth(tmp_path: Path, made) -> None:
    forgerynet.write_forgerynet_pictures(tmp_path, 7, {"train": 14, "stream": 6, "after": 6})
    listing = load_forgerynet(tmp_path, "image")
    assert listing.notes == ()
    read = {(entry.split, entry.path.name): entry for entry in with_own_names(listing.entries)}
    assert len(read) == len(made) == 26
    trained = [sample.family for split, sample in made if split == "train"]
    assert set(trained) == {REAL, *FAMILIES}
    assert trained.count(REAL) == 4, "three in ten"
    for split, sample in made:
        entry = read[SPLITS[split], sample.name]
        assert entry.path.read_bytes() == sample.data
        assert (entry.family, entry.label) == (sample.family, sample.family != REAL)
        assert len(entry.masks) == (sample.family != REAL)
        for truth in entry.masks:
            assert np.array_equal(np.asarray(Image.open(truth)), sample.mask)


def test_every_clip_is_read_back_with_its_family_and_its_stretches(tmp_path: Path, made) -> None:
    forgerynet.write_forgerynet_videos(tmp_path, 7, {"train": 16, "stream": 2, "after": 2})
    listing = load_forgerynet(tmp_path, "video")
    assert listing.notes == ()
    read = {entry.path.read_bytes(): entry for entry in with_own_names(listing.entries)}
    assert len(read) == len(made) == 20
    trained = [sample.family for split, sample in made if split == "train"]
    assert set(trained) == {REAL, *FAMILIES}
    assert trained.count(REAL) == 8, "half of them"
    for split, sample in made:
        entry = read[sample.data]
        assert (entry.family, entry.split) == (sample.family, SPLITS[split])
        assert (entry.segments, entry.annotated) == (sample.segments, (0, sample.frames))
        assert entry.label == (sample.family != REAL)


def test_every_family_and_each_kind_of_real_has_a_directory_of_its_own() -> None:
    assert sorted(DIRECTORIES.values()) == list(range(1, 9))
    assert DIRECTORIES.keys() == FAMILIES.keys()
    assert [directory_of(REAL, camera) for camera in (None, 0, 3, 7)] == [16, 17, 18, 19]

"""Clips written in ForgeryNet's layout are read back as they were made, the stretches of every family."""

from pathlib import Path

import pytest

from updater.benchmark.forgerynet.families import with_own_names
from updater.benchmark.synthetic.clips import make_clip, numbers_of
from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.forgerynet_pictures import DIRECTORIES, directory_of
from updater.benchmark.synthetic.forgerynet_videos import write_forgerynet_videos
from updater.benchmark.synthetic.stream import REAL
from updater.data.layouts.forgerynet import load_forgerynet


def test_a_tree_is_read_back_as_it_was_made(tmp_path: Path):
    counts = {"train": 18, "stream": 4, "after": 2}
    assert write_forgerynet_videos(tmp_path, 7, counts, processes=2) == 24
    listing = load_forgerynet(tmp_path, "video")
    assert listing.notes == ()
    read = {entry.path.read_bytes(): entry for entry in with_own_names(listing.entries)}
    for split, part in (("train", "train"), ("stream", "val"), ("after", "test")):
        for family, index in numbers_of(counts[split]):
            sample = make_clip(7, split, family, index)
            entry = read.pop(sample.data)
            assert (entry.family, entry.split) == (family, part)
            assert (entry.segments, entry.annotated) == (sample.segments, (0, sample.frames))
            assert entry.label == (family != REAL)
    assert read == {}


def test_a_tree_that_is_whole_is_left_and_another_is_not_written_over_it(tmp_path: Path):
    counts = {"train": 2}
    assert write_forgerynet_videos(tmp_path, 7, counts) == 2
    assert write_forgerynet_videos(tmp_path, 7, counts) == 0
    with pytest.raises(FileExistsError, match="other videos"):
        write_forgerynet_videos(tmp_path, 8, counts)


def test_every_family_and_each_kind_of_real_has_a_directory_of_its_own():
    assert sorted(DIRECTORIES.values()) == list(range(1, 9))
    assert DIRECTORIES.keys() == FAMILIES.keys()
    assert [directory_of(REAL, camera) for camera in (None, 0, 3, 7)] == [16, 17, 18, 19]

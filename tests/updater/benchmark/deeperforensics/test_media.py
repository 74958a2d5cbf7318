"""Clips as they are to be seen: reals get the distortions of their forgeries, once."""

from dataclasses import replace

import numpy as np
import pytest

from updater.benchmark.data.deeperforensics import load_deeperforensics
from updater.benchmark.deeperforensics import media
from updater.benchmark.deeperforensics.media import (
    SMALL,
    Reading,
    excerpts,
    materialised,
    of_both_labels,
    under,
)
from updater.benchmark.deeperforensics.tree import REALS_FOLDER
from updater.data.layouts.listed import Tally
from updater.distortions.distortion import Step


@pytest.fixture
def entries(tree):
    return load_deeperforensics(tree, tree / REALS_FOLDER, "sing").entries


def test_a_real_is_distorted_as_its_forgery_was_and_a_forgery_is_taken_as_it_is(entries, tmp_path):
    for entry in entries[:2]:
        assert materialised(entry, tmp_path) == entry.path
    real = next(one for one in entries if not one.label)
    made = materialised(real, tmp_path)
    assert made != real.path
    assert made.read_bytes() != real.path.read_bytes()


def test_what_was_made_once_is_not_made_again(entries, tmp_path, monkeypatch):
    real = next(one for one in entries if not one.label)
    made = materialised(real, tmp_path)

    def forbidden(*_, **__):
        raise AssertionError("made again")

    monkeypatch.setattr(media, "distort_file", forbidden)
    assert materialised(real, tmp_path) == made


def test_a_clip_that_cannot_be_distorted_is_left_out_and_counted(entries, tmp_path):
    broken = tmp_path / "broken.mp4"
    real = next(one for one in entries if not one.label)
    broken.write_bytes(real.path.read_bytes()[:400])
    tally = Tally()
    reading = Reading(SMALL, tmp_path / "cache", lambda *at: None, tally)
    items = reading.clips("test", [*entries[:2], replace(real, path=broken)])
    assert len(items) == 2
    assert items.crop_features.shape[0] == len(items.crops)
    (note,) = tally.notes()
    assert note.startswith("1 clips cannot be distorted, and are left out")


def test_excerpts_are_of_both_labels_and_a_distortion_changes_each(entries):
    some = excerpts(of_both_labels(entries, 4))
    assert sorted(one.entry.label for one in some) == [0, 0, 1, 1]
    plain, dark = under(some, [], SMALL), under(some, [Step("CC", 5)], SMALL)
    assert plain.crops.shape == dark.crops.shape == (4 * 4, 128, 128, 3)
    assert dark.crops.mean() == pytest.approx(0.35 * plain.crops.mean(), rel=0.02)
    assert (under(some, [Step("GNC", 2)], SMALL).crops == under(some, [Step("GNC", 2)], SMALL).crops).all()
    assert np.array_equal(plain.starts, [0, 4, 8, 12, 16])

"""The stream's pictures in ForgeryNet's layout: what its reader reads back is what was forged."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.forgerynet_pictures import (
    DIRECTORIES,
    write_forgerynet_pictures,
)
from updater.benchmark.synthetic.local_stills import make_local, numbers_of
from updater.benchmark.synthetic.stream import REAL
from updater.data.layouts.forgerynet import APPROACHES, load_forgerynet

COUNTS = {"train": 30, "stream": 12, "after": 12}
FAMILY_OF = {APPROACHES[number].name: family for family, number in DIRECTORIES.items()}
SPLITS = {"train": "train", "stream": "val", "after": "test"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("forgerynet")
    assert write_forgerynet_pictures(folder, 3, COUNTS) == sum(COUNTS.values())
    return folder


def test_the_reader_of_the_layout_finds_every_picture_with_its_family_and_its_truth(tree):
    listing = load_forgerynet(tree, "image")
    assert listing.notes == ()
    read = {(entry.split, entry.path.name): entry for entry in listing.entries}
    assert len(read) == sum(COUNTS.values())
    for split, count in COUNTS.items():
        for family, index in numbers_of(count):
            sample = make_local(3, split, family, index)
            entry = read[SPLITS[split], sample.name]
            assert entry.path.read_bytes() == sample.data
            assert FAMILY_OF.get(entry.family, entry.family) == family
            assert entry.label == int(family != REAL)
            if family == REAL:
                assert entry.masks == ()
            else:
                (truth,) = entry.masks
                assert np.array_equal(np.asarray(Image.open(truth)), sample.mask)


def test_every_family_has_a_directory_of_its_own():
    assert sorted(DIRECTORIES) == sorted(FAMILIES)
    assert sorted(DIRECTORIES.values()) == list(range(1, 9))


def test_three_in_ten_are_real_and_families_share_the_rest():
    families = [family for family, _ in numbers_of(1000)]
    assert families.count(REAL) == 300
    assert {families.count(family) for family in FAMILIES} <= {87, 88}


def test_a_tree_that_is_there_is_left_alone_and_another_is_refused(tree):
    before = {path: path.stat().st_mtime_ns for path in tree.rglob("*")}
    assert write_forgerynet_pictures(tree, 3, COUNTS) == 0
    with pytest.raises(FileExistsError, match="holds other pictures"):
        write_forgerynet_pictures(tree, 4, COUNTS)
    assert {path: path.stat().st_mtime_ns for path in tree.rglob("*")} == before


def test_a_tree_that_was_cut_short_is_written_whole(tmp_path):
    def stop(made: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        write_forgerynet_pictures(tmp_path, 0, {"train": 2}, progress=stop)
    assert write_forgerynet_pictures(tmp_path, 0, {"train": 2}) == 2
    assert len(load_forgerynet(tmp_path, "image").entries) == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_picture_is_forged_where_its_mask_says_and_nowhere_else(family):
    sample = make_local(0, "train", family, 1)
    assert sample.mask.shape == (256, 256)
    share = (sample.mask > 127).mean()
    assert 0.03 <= share <= 0.36 or FAMILIES[family].local
    assert 0 < share < 0.7
    assert Image.open(io.BytesIO(sample.data)).size == (256, 256)

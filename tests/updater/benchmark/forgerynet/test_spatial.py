"""Where pictures are forged: the localizer and the paper's networks learn maps, and are asked for maps."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from updater.benchmark.forgerynet import localizer
from updater.benchmark.forgerynet.choices import OWN, Choices, Job, with_own_names
from updater.benchmark.forgerynet.map_networks import train_map_network
from updater.benchmark.forgerynet.sights import MapItem, MapResult, Sample
from updater.benchmark.forgerynet.spatial import measure, outcome
from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.forgerynet import write_forgerynet
from updater.data.layouts.entries import Entry, LayoutError
from updater.data.layouts.forgerynet import load_forgerynet

CHOICES = Choices("spatial", "localizer", synthetic=True, input="native", augmentation="weak", steps=2)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    write_forgerynet(folder, "image", 0, {"train": 16, "stream": 12, "after": 12})
    return folder


def _job(tree, folder, choices=CHOICES, *, held_back=True):
    entries = with_own_names(load_forgerynet(tree, "image").entries)
    train, val, test = (tuple(one for one in entries if one.split == of) for of in ("train", "val", "test"))
    return Job(
        train, val if held_back else (), test, OWN, choices, 0, torch.device("cpu"), folder, folder / "sights"
    )


def test_every_figure_is_there_with_its_number_of_pictures_by_family_and_of_the_empty_map(tree, tmp_path):
    found = measure(_job(tree, tmp_path))
    names = {"agree_0.1", "agree_0.2", "close_0.01", "close_0.05", "l1"} | {"iou", "f1", "pixel_auc"}
    assert names | {"reals_marked"} <= set(found.figures)
    counts = {name: found.figures[name].n for name in (*names, "reals_marked")}
    assert {counts[name] for name in ("agree_0.1", "l1")} == {12}
    assert {counts[name] for name in ("iou", "f1", "pixel_auc")} == {8}
    assert counts["reals_marked"] == 4
    assert set(found.families) == set(FAMILIES)
    assert {of["pixel_auc"].n for of in found.families.values()} == {1}
    assert found.zeros["pixel_auc"].value == 0.5
    assert found.zeros["iou"].value == 0
    assert {"cut", "slope", "offset"} <= set(found.about)
    assert found.notes == ()
    (shown,) = found.shown
    # A picture, its truth and what was said of it for each family and a real one, in the page itself.
    assert shown.svg.count("data:image/png;base64,") == 3 * 9


def test_what_was_said_is_compared_with_the_truth_by_hand():
    true = np.zeros((2, 2), np.float32)
    forged = np.array([[1, 1], [0, 0]], np.float32)
    said = np.array([[0.9, 0.2], [0.6, 0.1]], np.float32)
    found = outcome([MapResult((0, 1), (said, 0 * said), (forged, true), 0.5, {})], ["blended", "real"])
    assert found.figures["iou"].value == pytest.approx(1 / 3)
    assert found.figures["pixel_auc"].value == pytest.approx(3 / 4)
    assert found.figures["reals_marked"].value == 0
    assert found.figures["l1"].value == pytest.approx((0.1 + 0.8 + 0.6 + 0.1) / 8)
    assert found.families["blended"]["iou"] == found.figures["iou"]


def test_families_left_out_are_each_measured_by_a_network_of_their_own(tree, tmp_path, monkeypatch):
    without = []
    train = localizer.train_localizer

    def spy(reals, known, *, without, **others):
        assert known is None
        asked.append(without)
        return train(reals, known, without=without, **others)

    asked = without
    monkeypatch.setattr(localizer, "train_localizer", spy)
    found = measure(_job(tree, tmp_path, replace(CHOICES, model="localizer:left-out", steps=1)))
    assert sorted(map(sorted, asked)) == sorted(sorted(one.kinds) for one in FAMILIES.values())
    assert found.figures["pixel_auc"].n == 8
    assert found.figures["reals_marked"].n == 4
    means = [of["pixel_auc"].value for of in found.families.values()]
    assert found.figures["pixel_auc"].value == pytest.approx(np.mean([mean or 0 for mean in means]))


def test_where_nothing_is_held_back_groups_of_the_training_are(tree, tmp_path):
    found = measure(_job(tree, tmp_path, replace(CHOICES, model="localizer:pseudo"), held_back=False))
    assert 0 < int(str(found.about["reals held back"])) < 5


def test_maps_that_are_missing_of_another_size_or_no_pictures_are_left_out_and_counted(tree, tmp_path):
    job = _job(tree, tmp_path)
    forged = [one for one in job.test if one.label]
    small, broken = tmp_path / "small.png", tmp_path / "broken.png"
    Image.new("L", (8, 8)).save(small)
    broken.write_bytes(b"no picture")
    changed = (
        replace(forged[0], masks=()),
        replace(forged[1], masks=(small,)),
        replace(forged[2], masks=(broken,)),
        *forged[3:],
        *(one for one in job.test if not one.label),
    )
    found = measure(replace(job, test=changed))
    assert found.figures["iou"].n == 5
    assert [note.partition(" (")[0] for note in found.notes] == [
        "1 forged pictures are left out, for where they are forged is not known",
        "1 maps are of another size than their pictures, which are left out",
        "1 maps are no pictures, and their forgeries are left out",
    ]


def test_a_part_without_maps_is_refused(tree, tmp_path):
    job = _job(tree, tmp_path)
    with pytest.raises(LayoutError, match="train needs reals, and forgeries with maps"):
        measure(replace(job, train=tuple(one for one in job.train if not one.label)))


PX = 72
FEW = {"px": 64, "batch": 4, "steps": 16, "rate": 0.02}
OF_NETWORKS = Choices("spatial", "unet:resnet18", synthetic=True, input="native", augmentation="weak", **FEW)


def entry(folder, number, split):
    """Grey noise; of every second picture a square is white, and its map says so."""
    rng = np.random.default_rng([number, len(split)])
    picture = rng.normal(100, 10, (PX, PX, 3)).clip(0, 255).astype(np.uint8)
    truth = np.zeros((PX, PX), np.uint8)
    top, left = rng.integers(0, PX - 24, 2)
    forged = number % 2 == 1
    if forged:
        picture[top : top + 24, left : left + 24] = 255
        truth[top : top + 24, left : left + 24] = 255
    path, mask = folder / f"{split}{number}.png", folder / f"{split}{number}-map.png"
    Image.fromarray(picture).save(path)
    Image.fromarray(truth).save(mask)
    family = "blended" if forged else "real"
    return Entry(path, int(forged), family, path.name, split, masks=(mask,) if forged else ())


def job_of(tmp_path, choices=OF_NETWORKS):
    train = tuple(entry(tmp_path, number, "train") for number in range(8))
    test = tuple(entry(tmp_path, number, "test") for number in range(4))
    return Job(train, (), test, OWN, choices, 0, torch.device("cpu"), tmp_path, tmp_path / "sights")


@pytest.mark.slow
@pytest.mark.parametrize("input", ["native", "face"])
def test_a_network_finds_what_is_forged(tmp_path, input):  # the option's name
    found = measure(job_of(tmp_path, replace(OF_NETWORKS, input=input)))
    assert (found.figures["pixel_auc"].value or 0) > 0.9
    assert found.figures["pixel_auc"].n == 2
    assert found.zeros["pixel_auc"].value == 0.5
    assert float(str(found.about["parameters"])) == 14_329_235


@pytest.mark.parametrize("augmentation", ["weak", "enhanced"])
def test_the_map_moves_with_its_picture(tmp_path, augmentation):
    job = job_of(tmp_path, replace(OF_NETWORKS, augmentation=augmentation))
    items = [MapItem(Sample(e), e.masks[0] if e.masks else None) for e in job.train]
    load = train_map_network(job, items).load
    apart = []
    for number in range(8):
        shown, target = load(1, np.random.default_rng(number))
        inside = target[1:].reshape(64, 64) > 0.5
        assert target[0] == 1
        assert shown.shape == (64, 64, 3)
        apart.append(shown[inside].mean() - shown[~inside].mean())
    # Some of our perturbations darken what is white; moved apart, the two would differ by nothing.
    assert np.median(apart) > (130 if augmentation == "weak" else 50)

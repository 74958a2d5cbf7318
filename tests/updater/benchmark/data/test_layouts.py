"""CDDB's and OpenCIL's directories become streams, or one clear line says why not."""

import io
import itertools
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from ingest.records import CropPlan
from updater.benchmark.continual.streams import blur_jpeg, distort_items
from updater.benchmark.data import crops as crops_module
from updater.benchmark.data.crops import ChangedMediaError, CropReader, MediaFile, UnreadableMediaError
from updater.benchmark.data.folders import in_steps, load_folders
from updater.benchmark.data.forgery_sets import SEQUENCES, load_cddb, load_families, sequence_of
from updater.benchmark.data.tasks import OutlierSet, hold_back, is_real
from updater.data.layouts.entries import DataError, Entry, LayoutError, Listing
from updater.distortions.distortion import Step
from updater.distortions.methods import distort, distort_crops
from updater.training.crop_rows import with_crop_features

PLAN = CropPlan(crop_px=32, patches=2, face_patches=0)


def picture(number):
    out = io.BytesIO()
    rng = np.random.default_rng(number)
    Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def lay(folder, places):
    number = 0
    for place, count in places.items():
        (folder / place).mkdir(parents=True)
        for index in range(count):
            (folder / place / f"{index}.png").write_bytes(picture(number))
            number += 1
    return folder


def test_pictures_are_distorted_whole_before_they_are_cut(tmp_path):
    top = cddb(tmp_path / "cddb", train=2, val=1)
    with CropReader(PLAN, processes=1) as reader:
        stream = load_cddb(top, "gan,glow", reader, calibration_share=0)
        pixels = np.asarray(Image.open(top / "gan/val/1_fake/0.png"))[None]
        by_hand = distort(np.random.default_rng(0), pixels, [Step("jpeg", 3)])[0]
        Image.fromarray(by_hand).save(tmp_path / "by_hand.png")
        wanted = reader.read("", "", [MediaFile(tmp_path / "by_hand.png", "", "")]).crops[:]
    test = stream.tasks[0].test
    (fake,) = [i for i, name in enumerate(test.families) if name == "gan/fake"]
    own = slice(*test.starts[fake : fake + 2])
    assert np.array_equal(distort_items(test, stream, "jpeg:3").crops[own], wanted)
    assert (wanted != distort_crops(np.random.default_rng(0), test.crops[own], [Step("jpeg", 3)])).any()
    (top / "gan/val/1_fake/0.png").write_bytes(picture(99))
    with pytest.raises(ChangedMediaError, match="png changed"):
        distort_items(test, stream, "jpeg:3")


def test_a_whole_picture_is_put_together_of_tiles_that_the_sandbox_decodes(tmp_path, reader, monkeypatch):
    pixels, more = np.random.default_rng(0).integers(0, 256, (2, 1030, 2100, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    Image.fromarray(pixels).save(tmp_path / "b.gif", save_all=True, append_images=[Image.fromarray(more)])
    monkeypatch.setattr(Image, "open", None)
    assert np.array_equal(reader.whole(tmp_path / "a.png")[1], pixels)
    with pytest.raises(UnreadableMediaError, match="gif is a video or an animation"):
        reader.whole(tmp_path / "b.gif")


def test_half_of_the_pictures_are_blurred_and_half_are_stored_as_jpeg():
    pixels = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), dtype=np.uint8)
    rng = np.random.default_rng(1)
    moved = [np.abs(blur_jpeg(rng, pixels).astype(int) - pixels).mean() for _ in range(400)]
    assert sum(by == 0 for by in moved) == pytest.approx(100, abs=25)
    assert (blur_jpeg(np.random.default_rng(1), pixels) == blur_jpeg(np.random.default_rng(1), pixels)).all()


@pytest.fixture(scope="module")
def reader():
    # One reader, so one sandbox, for all tests that need not see the cache.
    with CropReader(PLAN, processes=1) as opened:
        yield opened


def cddb(folder, tasks=("gan", "glow"), train=8, val=4):
    parts = {f"{part}/{k}": n for part, n in (("train", train), ("val", val)) for k in ("0_real", "1_fake")}
    return lay(folder, {f"{task}/{part}": count for task in tasks for part, count in parts.items()})


def test_a_task_of_cddb_has_its_own_reals_and_fakes(tmp_path, reader):
    stream = load_cddb(cddb(tmp_path), "glow,gan", reader)
    task, other = stream.tasks
    assert (task.name, other.name) == ("glow", "gan")
    assert task.classes == ("glow/real", "glow/fake")
    counts = [part.counts() for part in (task.train, task.calibration, task.test)]
    assert counts == [{"glow/fake": n, "glow/real": n} for n in (6, 2, 4)]
    assert set(task.train.sources) == {"glow"}
    assert task.test.crops.shape == (16, 32, 32, 3)
    assert {*filter(is_real, ("glow/real", "real", "glow/fake", "unreal"))} == {"glow/real", "real"}


def test_object_classes_are_merged(tmp_path, reader):
    parts = itertools.product(("train", "val"), ("fair", "dark"), ("0_real", "1_fake"))
    lay(tmp_path, {f"glow/{part}/{hair}/{kind}": 2 for part, hair, kind in parts})
    stream = load_cddb(tmp_path, "glow", reader, calibration_share=0)
    task = stream.tasks[0]
    assert (task.train.counts(), len(task.calibration)) == ({"glow/fake": 4, "glow/real": 4}, 0)
    assert any("/fair/0_real/" in item for item in task.train.ids)


def test_crops_are_the_files_own_pixels(tmp_path, reader):
    items = load_cddb(cddb(tmp_path), "gan", reader).tasks[0].test
    item = next(i for i, name in enumerate(items.ids) if name.startswith("gan/val/0_real/0.png@"))
    pixels = np.asarray(Image.open(tmp_path / "gan/val/0_real/0.png"))
    assert np.array_equal(items.crops[items.starts[item]], pixels[:32, :32])


def test_the_sequences_are_those_of_the_paper():
    assert {name: len(tasks) for name, tasks in SEQUENCES.items()} == {"easy": 7, "hard": 5, "long": 12}
    assert SEQUENCES["long"][:7] == SEQUENCES["easy"]
    assert set(SEQUENCES["hard"]) < set(SEQUENCES["long"])


def test_a_named_sequence_finds_the_published_folders_and_their_other_names(tmp_path):
    cddb(tmp_path, ["gaugan", "biggan", "wilddeepfake", "whichfaceisreal", "san"], 1, 1)
    assert sequence_of(tmp_path, "hard") == ("gaugan", "biggan", "wilddeepfake", "whichfaceisreal", "san")


def test_a_sequence_with_missing_tasks_says_which_and_what_is_there(tmp_path):
    cddb(tmp_path, ["gaugan", "san"], 1, 1)
    with pytest.raises(LayoutError, match=r"lacks biggan, wild, whichfaceisreal .* it has gaugan, san"):
        sequence_of(tmp_path, "hard")
    with pytest.raises(LayoutError, match="twice"):
        sequence_of(tmp_path, "san,san")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda root: [p.unlink() for p in (root / "gan/train/1_fake").iterdir()], "1_fake holds no"),
        (lambda root: (root / "gan/train/1_fake").rename(root / "gan/train/fakes"), "1_fake is missing"),
        (lambda root: (root / "gan/val").rename(root / "gan/validation"), "gan/val is missing"),
    ],
)
def test_what_cannot_be_read_is_one_line_that_names_the_place(tmp_path, reader, spoil, told):
    spoil(cddb(tmp_path))
    with pytest.raises(DataError, match=told) as error:
        load_cddb(tmp_path, "gan", reader)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("places", "told"),
    [
        ({"id/a/train": 1, "id/a/test": 1}, "ood holds no outlier set"),
        ({"id/a": 2, "ood/near": 1, "ood/far/svhn": 1}, "ood/near holds no outlier set"),
        ({"id/a": 2, "ood/near/x": 1, "ood/far/x": 1}, "ood holds x more than once"),
        ({"ood/svhn": 1}, "id holds no classes"),
        ({"id/a": 1, "ood/svhn": 0}, "svhn holds no media"),
        ({"id/a": 1, "ood/svhn": 1}, "class a has one picture to learn from"),
        ({"id/train/a": 1, "id/train/b": 1, "id/test/a": 1, "ood/svhn": 1}, "id/train/b has no test"),
        ({"id/a/train": 1, "id/a/test": 1, "id/b/train": 1, "ood/svhn": 1}, "id/b/test is missing"),
    ],
)
def test_a_wrong_opencil_layout_is_one_line(tmp_path, reader, places, told):
    with pytest.raises(LayoutError, match=told) as error:
        load_folders(lay(tmp_path, places), reader)
    assert "\n" not in str(error.value)


def test_a_folder_that_is_none_of_cddb_is_refused(tmp_path, reader):
    with pytest.raises(LayoutError, match="is no folder"):
        load_cddb(tmp_path / "nothing", "gan", reader)
    with pytest.raises(LayoutError, match="lay it out so"):
        load_cddb(lay(tmp_path, {"real": 1}), "gan", reader)


def test_media_is_decoded_once_and_a_damaged_cache_is_made_again(tmp_path, monkeypatch):
    folder, cache = cddb(tmp_path / "data"), tmp_path / "cache"

    def load():
        with CropReader(PLAN, cache, processes=1) as opened:
            return load_cddb(folder, "gan", opened)

    first = load()
    train, test = (part.crops[:] for part in (first.tasks[0].train, first.tasks[0].test))
    kept = {path: path.read_bytes() for path in cache.iterdir()}
    assert len(kept) == 2
    flipped, cut = sorted(kept)
    flipped.write_bytes(kept[flipped][:-9] + bytes([kept[flipped][-9] ^ 1]) + kept[flipped][-8:])
    cut.write_bytes(kept[cut][:100])
    assert np.array_equal(train, load().tasks[0].train.crops[:])
    assert {path: path.read_bytes() for path in cache.iterdir()} == kept

    # What is cached needs no decoding; another plan does.
    monkeypatch.setattr(crops_module, "Sandbox", None)
    assert np.array_equal(load().tasks[0].test.crops[:], test)
    with CropReader(PLAN.model_copy(update={"patches": 1}), cache) as opened, pytest.raises(TypeError):
        load_cddb(folder, "gan", opened)


def test_without_pixels_the_same_features_are_kept_and_what_is_taken_is_told(tmp_path):
    folder, told, found = cddb(tmp_path / "data"), [], []
    for pixels in (True, False, False):
        cache = tmp_path / f"cache-{pixels}"
        with CropReader(PLAN, cache, processes=1, tell=told.append, pixels=pixels) as opened:
            items = load_cddb(folder, "gan", opened).tasks[0].train
        found.append(with_crop_features(items, torch.device("cpu")).crop_features[:])
    assert items.crops.shape == (len(found[0]), 32, 0, 3)
    assert all(np.array_equal(found[0], other) for other in found[1:])
    assert told[0].startswith("24 pictures, at most 48 crops of 32 px: 0.00 of ")
    assert "of which features are kept" in told[1]


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([("train", "df", 1), ("train", "df", 2), ("test", "df", 1)], "are one picture in two sets: remove"),
        ([("train", "df", 1), ("test", "real", 2)], "class df/fake has one picture to learn from"),
        ([("train", "real", 1), ("test", "real", 2)], "made has no forgeries: unpack some"),
    ],
)
def test_families_that_cannot_be_learnt_are_one_line(tmp_path, reader, places, said):
    entries = []
    for place, (split, kind, number) in enumerate(places):
        (tmp_path / f"{place}.png").write_bytes(picture(number))
        entries.append(Entry(tmp_path / f"{place}.png", int(kind != "real"), kind, f"{place}", split))
    with pytest.raises(LayoutError, match=said):
        load_families(Listing("made", tuple(entries), ()), reader)


def test_damaged_files_are_left_out_and_counted_until_a_class_has_no_other(tmp_path):
    folder, cache = cddb(tmp_path / "data"), tmp_path / "cache"
    *others, dangling, damaged = sorted((folder / "gan/val/1_fake").iterdir())
    damaged.write_bytes(picture(1)[:300])
    dangling.unlink()
    dangling.symlink_to(tmp_path / "nowhere")
    for _ in ("decoded", "from the cache"):
        with CropReader(PLAN, cache, processes=1) as opened:
            test = load_cddb(folder, "gan", opened).tasks[0].test
        assert test.counts() == {"gan/real": 4, "gan/fake": len(others)}
        unread, blank = opened.tally.notes()
        assert unread.startswith(f"1 files cannot be read and are left out (first: {dangling} ")
        assert blank == f"1 files give no picture and are left out (first: {damaged})"
    for path in others:
        path.write_text("hello")
    with CropReader(PLAN, processes=1) as opened, pytest.raises(UnreadableMediaError, match="of gan/fake"):
        load_cddb(folder, "gan", opened)


def test_files_that_show_the_same_picture_are_one_group_and_others_are_not(tmp_path):
    (photo := Image.open(io.BytesIO(picture(1)))).save(tmp_path / "a.png")
    photo.save(tmp_path / "again.jpg", quality=80)
    photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(tmp_path / "mirrored.png")
    (tmp_path / "other.png").write_bytes(picture(2))
    files = [MediaFile(path, path.name, "real") for path in sorted(tmp_path.iterdir())]
    for cache in (None, tmp_path / "cache", tmp_path / "cache"):
        with CropReader(PLAN, cache, processes=1) as opened:
            first, saved, mirrored, other = opened.read("read", "", files).groups
        assert first == saved == mirrored != other


def test_progress_reaches_the_end_of_every_stage(tmp_path):
    seen = {}
    show = lambda stage, done, total: seen.setdefault(stage, []).append((done, total))  # noqa: E731
    with CropReader(PLAN, None, show, processes=1) as opened:
        load_cddb(cddb(tmp_path), "gan", opened)
    assert [seen[f"read gan/{part}"][-1] for part in ("train", "val")] == [(16, 16), (8, 8)]
    assert all(at == sorted(at) for at in seen.values())


def test_the_digest_is_of_the_media_and_not_of_their_place_or_plan(tmp_path, reader):
    stream = load_cddb(cddb(tmp_path / "a"), "gan", reader)
    (tmp_path / "a").rename(tmp_path / "b")
    with CropReader(PLAN.model_copy(update={"patches": 1}), processes=1) as other:
        again = load_cddb(tmp_path / "b", "gan", other)
    assert again.digest == stream.digest
    assert (again.plan, stream.plan) == (other.plan, PLAN)
    (tmp_path / "b/gan/val/1_fake/0.png").write_bytes(picture(999))
    assert load_cddb(tmp_path / "b", "gan", reader).digest != stream.digest


def test_families_not_yet_seen_are_outliers_until_their_step(tmp_path, reader):
    cddb(tmp_path, ["gan", "glow", "flow"], val=8)
    stream = load_cddb(tmp_path, "gan,glow", reader, unseen=True)
    glow, flow = stream.outliers
    assert [len(of.at(step, 2)) for of in (glow, flow) for step in range(2)] == [16, 0, 8, 16]
    assert len(flow.at(0, 2).counts()) == 2  # in a drawn order: not all of them reals


def test_groups_stay_whole_when_items_are_held_back(tmp_path, reader):
    items = load_cddb(cddb(tmp_path), "gan", reader, calibration_share=0).tasks[0].train
    grouped = replace(items, groups=tuple(f"scene-{i // 2}" for i in range(len(items))))
    kept, held = hold_back(grouped, 0.25, 7)
    assert not set(kept.groups) & set(held.groups)
    assert Counter(held.families) == {"gan/real": 2, "gan/fake": 2}
    assert hold_back(grouped, 0.25, 7)[1].ids == held.ids
    assert hold_back(grouped, 0.25, 8)[1].ids != held.ids
    with pytest.raises(LayoutError, match="too few"):
        hold_back(grouped.take([0]), 0.25, 7)


@pytest.mark.parametrize(
    ("places", "train", "test"),
    [
        ({f"id/{c}/{p}": n for c in "abc" for p, n in (("train", 5), ("test", 2))}, 5, 2),
        ({f"id/{p}/{c}": n for c in "abc" for p, n in (("train", 5), ("test", 2))}, 5, 2),
        ({f"id/{c}": 5 for c in "abc"}, 4, 1),
    ],
)
def test_classes_lie_in_any_of_three_layouts(tmp_path, reader, places, train, test):
    lay(tmp_path, places | {"ood/svhn": 6, "ood/places": 3})
    stream = load_folders(tmp_path, reader, base=2, increment=1, calibration_share=0)
    assert [len(task.classes) for task in stream.tasks] == [2, 1]
    assert sorted(name for task in stream.tasks for name in task.classes) == ["a", "b", "c"]
    counts = [(*task.train.counts().values(), *task.test.counts().values()) for task in stream.tasks]
    assert counts == [(train,) * 2 + (test,) * 2, (train, test)]
    shown = {s.name: [len(s.at(step, 2)) for step in range(2)] for s in stream.outliers}
    assert shown == {"places": [1, 3], "svhn": [3, 6]}
    assert (stream.outliers[0].items.counts(), stream.plan) == ({"places": 3}, PLAN)


def test_outlier_sets_may_be_near_or_far(tmp_path, reader):
    classes = {"id/a/train": 3, "id/a/test": 1}
    lay(tmp_path, classes | {"ood/far/svhn": 2, "ood/near/cifar": 2, "ood/near/tin": 1, "ood/places": 1})
    stream = load_folders(tmp_path, reader)
    distances = [(outlier.name, outlier.distance) for outlier in stream.outliers]
    assert distances == [("cifar", "near"), ("tin", "near"), ("svhn", "far"), ("places", None)]
    assert stream.outliers[0].items.counts() == {"cifar": 2}
    elsewhere = tuple(replace(outlier, distance="far") for outlier in stream.outliers)
    assert replace(stream, outliers=elsewhere).digest != stream.digest


def test_steps_share_the_classes_out_once_each():
    steps = in_steps([f"c{i:03}" for i in range(100)], 10, 10, 1993)
    # CIFAR-100's first step, as PyCIL and OpenCIL print it for their seed.
    assert steps[0] == tuple(f"c{i:03}" for i in (68, 56, 78, 8, 23, 84, 90, 65, 74, 76))
    assert [len(step) for step in steps] == [10] * 10
    assert len({name for step in steps for name in step}) == 100
    for cut, sizes in ((("abcdefg", 3, 2), [3, 2, 2]), (("abcdef", 3, 2), [3, 2, 1]), (("ab", 10, 10), [2])):
        assert [len(step) for step in in_steps(*cut, 1)] == sizes
    assert in_steps("abcdefg", 3, 2, 1) != in_steps("abcdefg", 3, 2, 2)


LISTS = "benchmark_imglist/cifar100/"


@pytest.fixture
def lists(tmp_path):
    """Two classes of two files in each part, and a near and a far set, by lists as OpenCIL has them."""
    rows = {f"{part}_cifar100": "ab" for part in ("train", "test", "val")}
    rows |= {"test_tin": "t", "test_svhn": "s"}
    places = [f"images_classic/{name}/{letter}" for name, letters in rows.items() for letter in letters]
    lay(tmp_path, dict.fromkeys(places, 2))
    (tmp_path / LISTS).mkdir(parents=True)
    for name, letters in rows.items():
        lines = [f"{name}/{c}/{i}.png {'ab'.find(c)}\n" for c in letters for i in range(2)]
        (tmp_path / f"{LISTS}{name}.txt").write_text("".join(lines))
    return tmp_path


def test_released_lists_name_classes_and_outlier_sets(lists, reader):
    stream = load_folders(lists, reader, base=1, increment=1, calibration_share=0)
    for of in ("train", "test", "calibration"):
        assert [getattr(task, of).counts() for task in stream.tasks] == [{"0000": 2}, {"0001": 2}]
    sets = {outliers.name: (outliers.distance, len(outliers.items)) for outliers in stream.outliers}
    assert sets == {"svhn": ("far", 2), "tin": ("near", 2)}


@pytest.mark.parametrize(
    ("file", "data", "told"),
    [
        ("images_classic/test_tin/t/1.png", None, "test_tin.txt names 'test_tin/t/1.png -1': no file"),
        (f"{LISTS}train_cifar100.txt", None, "has the lists of nothing"),
        (f"{LISTS}test_svhn.txt", b"", "cifar100 lists no outlier set, or an empty one"),
        (f"{LISTS}test_svhn.txt", b"../a.png 0", "test_svhn.txt names '../a.png 0': no file"),
        (f"{LISTS}train_cifar100.txt", b"train_cifar100/a/0.png 0", "class 0001 has no train or no test"),
        ("images_classic/test_svhn/s/0.png", picture(0), "are one picture in two sets: remove one"),
    ],
)
def test_what_lists_lack_is_one_line_before_a_picture_is_read(lists, reader, monkeypatch, file, data, told):
    (lists / file).unlink() if data is None else (lists / file).write_bytes(data)
    monkeypatch.setattr(CropReader, "read", lambda *_: pytest.fail("a picture was decoded"))
    with pytest.raises(LayoutError, match=re.escape(told)):
        load_folders(lists, reader)


def test_outliers_and_tests_of_the_known_grow_at_one_rate(tmp_path, reader):
    items = load_cddb(cddb(tmp_path, val=10), "gan", reader).tasks[0].test
    grown = [OutlierSet("x", items).at(step, 5) for step in range(5)]
    assert [len(one) for one in grown] == [4, 8, 12, 16, 20]
    assert all(small.ids == large.ids[: len(small)] for small, large in itertools.pairwise(grown))

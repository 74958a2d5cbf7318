from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import update

from ingest.records import PicturePlan
from memory.crops.scans import decode_frames
from memory.labels import label, undo
from memory.records import split_of
from memory.rows import exemplars_of
from memory.schema import exemplars
from updater.data import real_clips
from updater.data.real_clips import Gathering, RealClips
from updater.data.training_data import CropSizesError, CropsLostError, PicturesLackingError, load, load_splits
from updater.schedule import known_label, labelled_since, newest_label


@pytest.mark.slow
def test_every_labelled_item_is_loaded_once_on_the_side_that_its_group_says(store, crops, remember):
    ids, _ = remember("real", 30)
    fakes, _ = remember("blocky", 30)
    splits = load_splits(store, crops)
    with store.read() as connection:
        split_by_id = {one.id: split_of(one.group) for one in exemplars_of(connection, ids + fakes)}
    loaded = {name: getattr(splits, name) for name in ("train", "calibration", "test")}
    assert sorted(i for one in loaded.values() for i in one.ids) == sorted(ids + fakes)
    for name, items in loaded.items():
        assert {split_by_id[i] for i in items.ids} == {name}
        assert items.crops.shape == (2 * len(items), 64, 64, 3)
        assert np.array_equal(items.starts, 2 * np.arange(len(items) + 1))
        assert set(zip(items.ids, items.families, strict=True)) <= {
            *((i, "real") for i in ids),
            *((i, "blocky") for i in fakes),
        }


@pytest.mark.slow
def test_the_crops_of_an_item_are_its_own(store, crops, remember):
    remember("real", 8)
    for split in ("train", "calibration", "test"):
        items = load(store, crops, split)
        with store.read() as connection:
            rows = exemplars_of(connection, items.ids)
        for number, row in enumerate(rows):
            mine = items.crops[items.starts[number] : items.starts[number + 1]]
            assert np.array_equal(mine, crops.load(row.crops_digest))


@pytest.mark.slow
def test_each_item_comes_with_its_media_and_the_label_that_it_bears(store, crops, remember):
    ids, first = remember("real", 12)
    number = label(store, ids[:6], "real", "bea")
    undo(store, label(store, ids, "blocky", "cem"), "cem")
    splits = load_splits(store, crops)
    for split in ("train", "calibration", "test"):
        items = getattr(splits, split)
        with store.read() as connection:
            rows = exemplars_of(connection, items.ids)
        assert items.media.tolist() == [row.media_digest for row in rows]
        assert items.labels.tolist() == [number if row.id in ids[:6] else first for row in rows]


@pytest.mark.slow
def test_the_same_media_that_came_in_another_order_are_loaded_alike(store, crops, remember):
    remember("real", 20)
    items = load(store, crops, "train")
    for place, name in enumerate(reversed(items.ids)):
        with store.write() as connection:
            connection.execute(update(exemplars).where(exemplars.c.id == name).values(received_ms=place))
    again = load(store, crops, "train")
    assert len(again) > 2
    assert again.ids == items.ids
    assert np.array_equal(again.crops[:], items.crops[:])


@pytest.mark.slow
def test_an_item_whose_crops_are_damaged_or_gone_alone_is_left_out(store, crops, remember, memory_settings):
    remember("real", 40)
    whole = load(store, crops, "train")
    with store.read() as connection:
        damaged, gone = exemplars_of(connection, whole.ids[:2])
    (path,) = Path(memory_settings.crops_url).rglob(f"{damaged.crops_digest}*")
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    crops.delete(gone.crops_digest)
    assert load(store, crops, "train").ids == whole.ids[2:]


@pytest.mark.slow
def test_one_damaged_item_stops_no_learning_however_few_there_are(store, crops, remember):
    remember("real", 8)
    items = load(store, crops, "train")
    assert 2 <= len(items) < 10
    with store.read() as connection:
        rows = exemplars_of(connection, items.ids)
    crops.delete(rows[0].crops_digest)
    assert len(load(store, crops, "train")) == len(rows) - 1
    crops.delete(rows[1].crops_digest)
    with pytest.raises(CropsLostError):
        load(store, crops, "train")


@pytest.mark.slow
def test_a_crop_store_that_was_lost_stops_learning_and_says_so(store, crops, remember):
    remember("real", 40)
    items = load(store, crops, "train")
    with store.read() as connection:
        rows = exemplars_of(connection, items.ids)
    for row in rows[: len(rows) // 10]:
        crops.delete(row.crops_digest)
    assert len(load(store, crops, "train")) == len(rows) - len(rows) // 10
    crops.delete(rows[-1].crops_digest)
    with pytest.raises(CropsLostError, match=rf"{len(rows) // 10 + 1} of {len(rows)} .*CROPS_URL"):
        load(store, crops, "train")


@pytest.mark.slow
def test_items_that_a_person_ignored_or_took_back_are_not_loaded(store, crops, remember):
    ids, number = remember("real", 20)
    label(store, ids[:5], "ignore", "ann")
    loaded = {i for split in ("train", "calibration", "test") for i in load(store, crops, split).ids}
    assert loaded == set(ids[5:])
    undo(store, newest_label(store), "ann")
    undo(store, number, "ann")
    assert all(len(load(store, crops, split)) == 0 for split in ("train", "calibration", "test"))


@pytest.mark.slow
def test_new_labels_are_counted_until_they_are_undone_and_ignoring_is_no_label_of_a_class(store, remember):
    assert newest_label(store) == 0
    _, first = remember("real", 4)
    ids, second = remember("blocky", 6)
    assert labelled_since(store, 0) == 10
    assert labelled_since(store, first) == 6
    label(store, ids[:2], "ignore", "ann")
    assert labelled_since(store, first) == 4
    undo(store, newest_label(store), "ann")
    undo(store, second, "ann")
    assert labelled_since(store, first) == 0
    assert labelled_since(store, 0) == 4


@pytest.mark.slow
def test_a_label_that_is_not_there_yet_is_of_a_memory_that_was_restored_and_says_nothing(store, remember):
    _, first = remember("real", 4)
    remember("blocky", 6)
    newest = newest_label(store)
    assert [known_label(store, number) for number in (0, first, newest, newest + 1)] == [0, first, newest, 0]
    assert labelled_since(store, newest) == 0
    assert labelled_since(store, newest + 30) == 10


@pytest.mark.slow
def test_crops_of_two_sizes_are_refused_by_name(store, crops, remember):
    remember("real", 12)
    ids, _ = remember("blocky", 12)
    small = crops.put(np.zeros((1, 32, 32, 3), np.uint8))
    with store.write() as connection:
        connection.execute(update(exemplars).where(exemplars.c.id.in_(ids)).values(crops_digest=small))
    with pytest.raises(CropSizesError, match=r"32, 64"):
        load(store, crops, "train")


PLAN = PicturePlan(width_px=24, height_px=16)


def flat(side=(16, 24)):
    return lambda rng: np.full((*side, 3), rng.integers(0, 256), np.uint8)


@pytest.mark.slow
def test_whole_pictures_are_loaded_where_a_model_looks_at_them(store, crops, remember):
    remember("real", 20, shown=flat())
    remember("real", 1)  # one item may lack it, as one may lack its crops
    assert load(store, crops, "train").pictures is None
    items = load(store, crops, "train", picture=PLAN)
    with store.read() as connection:
        rows = exemplars_of(connection, items.ids)
    assert items.pictures.shape == (len(items), 16, 24, 3)
    for number, row in enumerate(rows):
        assert np.array_equal(items.pictures[number], crops.load_views(row.crops_digest).picture)
    assert np.array_equal(items.take([3, 1]).pictures, items.pictures[[3, 1]])


@pytest.mark.slow
@pytest.mark.parametrize("shown", [None, flat((24, 24))])
def test_a_memory_that_kept_no_such_pictures_is_refused_by_what_to_set(store, crops, remember, shown):
    remember("real", 20, shown=shown)
    with pytest.raises(PicturesLackingError, match="set FORGEWATCH_MEMORY_PICTURE_PX") as error:
        load(store, crops, "train", picture=PLAN)
    assert "\n" not in str(error.value)
    assert len(load(store, crops, "train"))


def moving(rng):
    """Frames of a video, another number of each."""
    return rng.integers(0, 256, (18 + int(rng.integers(8)), 64, 64, 3), np.uint8)


def _videos_of(items):
    assert items.take([]).videos.tolist() == []
    assert items.take(range(len(items))[::-1]).videos.tolist() == items.videos.tolist()[::-1]
    return [one for one, video in zip(items.ids, items.videos, strict=True) if video]


@pytest.mark.slow
def test_frames_of_real_videos_are_loaded_by_split_where_they_are_asked_for(store, crops, remember):
    remember("real", 6)
    videos, _ = remember("real", 20, frames=moving)
    forged, _ = remember("blocky", 4, frames=moving)
    without = load_splits(store, crops)
    assert without.clips == {}
    known = {one for items in (without.train, without.calibration, without.test) for one in _videos_of(items)}
    assert known == {*videos, *forged}
    splits = load_splits(store, crops, with_clips=True)
    with store.read() as connection:
        rows = {one.id: one for one in exemplars_of(connection, videos)}
    for name in ("train", "calibration", "test"):
        items, clips = getattr(splits, name), splits.clips[name]
        mine = [rows[i] for i in items.ids if i in rows]
        assert clips.groups == tuple(one.group for one in mine)
        for number, one in enumerate(mine):
            stored = decode_frames(crops.load_views(one.crops_digest).scan)
            np.testing.assert_array_equal(clips[number], stored)
    assert sum(map(len, splits.clips.values())) == 20
    assert not set(splits.clips["train"].groups) & set(splits.clips["calibration"].groups)


@pytest.mark.slow
def test_a_video_called_real_no_more_or_unreadable_is_in_no_split(store, crops, remember, monkeypatch):
    videos, number = remember("real", 9, frames=moving)
    assert sum(map(len, load_splits(store, crops, videos[:4], with_clips=True).clips.values())) == 5
    with store.read() as connection:
        (broken,) = exemplars_of(connection, videos[:1])
    views = crops.load_views(broken.crops_digest)
    gathering = Gathering()
    gathering.add(broken, views._replace(scan=b"no frames"))
    gathering.add(broken, views._replace(crops=views.crops[:, :32, :32]))
    gathering.add(broken.model_copy(update={"family": "gan"}), views)
    assert len(gathering.clips()) == 0
    monkeypatch.setattr(real_clips, "MOST", 2)
    assert max(map(len, load_splits(store, crops, with_clips=True).clips.values())) == 2
    undo(store, number, "ann")
    assert sum(map(len, load_splits(store, crops, with_clips=True).clips.values())) == 0


def test_a_group_of_videos_is_one_witness():
    clips = RealClips(np.zeros((4, 8, 8, 3), np.uint8), np.arange(5), ("b", "a", "b", "c"))
    assert clips.one_a_group() == (0, 1, 3)

import os
from pathlib import Path

import numpy as np
import pytest

from memory.crops.crop_store import CropsDamagedError, CropsMissingError, CropStore

CROPS = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)


def the_file(folder: Path) -> Path:
    (path,) = folder.rglob("*.safetensors")
    return path


@pytest.mark.parametrize("place", ["folder", "memory://forgewatch-test"])
def test_crops_come_back_as_they_were_and_lie_there_once(tmp_path: Path, place: str) -> None:
    store = CropStore(str(tmp_path / "crops") if place == "folder" else place)
    digest = store.put(CROPS)
    assert store.put(CROPS) == digest
    np.testing.assert_array_equal(store.load(digest), CROPS)
    assert list(store.digests()) == [digest]
    store.delete(digest)
    store.delete(digest)
    assert list(store.digests()) == []
    with pytest.raises(CropsMissingError):
        store.load(digest)


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_damaged_crops_are_noticed(tmp_path: Path, damage: str) -> None:
    store = CropStore(str(tmp_path))
    digest = store.put(CROPS)
    path = the_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"flip": bytes(content), "truncate": bytes(content[:-9]), "empty": b""}[damage])
    with pytest.raises(CropsDamagedError):
        store.load(digest)


def test_a_crash_before_the_rename_leaves_no_crops_under_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CropStore(str(tmp_path))

    def crash(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        store.put(CROPS)
    assert list(store.digests()) == []
    monkeypatch.undo()
    np.testing.assert_array_equal(store.load(store.put(CROPS)), CROPS)


def test_a_picture_lies_with_its_crops_and_goes_with_them(tmp_path: Path) -> None:
    store, picture = CropStore(str(tmp_path)), np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    bare, both = store.put_all([CROPS, CROPS], [None, picture])
    assert bare == store.put(CROPS) != both
    np.testing.assert_array_equal(store.load(both), CROPS)
    crops, shown, _ = store.load_views(both)
    np.testing.assert_array_equal(crops, CROPS)
    np.testing.assert_array_equal(shown, picture)
    assert store.load_views(bare).picture is None
    store.delete_all([bare, both])
    assert list(tmp_path.rglob("*.safetensors")) == []


def test_frames_of_a_video_lie_with_its_crops_and_go_with_them(tmp_path: Path) -> None:
    store, picture = CropStore(str(tmp_path)), np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    bare, framed, full = store.put_all([CROPS] * 3, [None, None, picture], [None, b"frames", b"frames"])
    assert len({bare, framed, full}) == 3
    assert [store.load_views(each).scan for each in (bare, framed, full)] == [None, b"frames", b"frames"]
    np.testing.assert_array_equal(store.load(framed), CROPS)
    np.testing.assert_array_equal(store.load_views(full).picture, picture)
    store.delete_all([bare, framed, full])
    assert list(tmp_path.rglob("*.safetensors")) == []

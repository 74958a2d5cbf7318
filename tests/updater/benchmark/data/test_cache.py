"""Pieces are made once, by whichever process comes first, and are found again by all."""

import hashlib
import time

import numpy as np
import pytest
import torch
from forked import FORKS

from ingest.records import Decoded
from updater.benchmark.data import crops as features_module
from updater.benchmark.data.cache import CacheError, Piece, fetch
from updater.benchmark.data.crops import ChangedMediaError, CropReader, MediaFile, stored_features
from updater.data.stored_rows import StoredRows
from updater.training.crop_rows import by_rows


def piece(seed=0):
    crops = np.random.default_rng(seed).integers(0, 256, (5, 32, 32, 3), np.uint8)
    return Piece(("a", "b"), ("a", "a"), crops, np.array([0, 2, 5]))


def _make_slowly(folder, begun, queue):
    made = []

    def make():
        begun.set()
        time.sleep(0.5)  # long enough for the others to come and find it being made
        made.append(1)
        return piece()

    found = fetch(folder, "0" * 64, make)
    queue.put((len(made), found.crops[:].tobytes()))


def test_of_several_processes_one_makes_a_piece_and_all_find_it(tmp_path):
    begun, queue = FORKS.Event(), FORKS.Queue()
    children = [FORKS.Process(target=_make_slowly, args=(tmp_path / "crops", begun, queue)) for _ in range(3)]
    for child in children:
        child.start()
    assert begun.wait(120)
    # Whoever does not wait goes on to what nobody is at.
    assert fetch(tmp_path / "crops", "0" * 64, piece, wait=False) is None
    assert fetch(tmp_path / "crops", "1" * 64, piece, wait=False) is not None
    found = [queue.get(timeout=180) for _ in children]
    for child in children:
        child.join()
    assert sum(made for made, _ in found) == 1
    assert {content for _, content in found} == {piece().crops.tobytes()}


def test_a_folder_that_cannot_be_written_is_told_of_in_one_line(tmp_path):
    (tmp_path / "crops").write_bytes(b"a file")
    with pytest.raises(CacheError, match="cannot be used"):
        fetch(tmp_path / "crops", "0" * 64, piece)


def test_features_are_computed_once_and_again_where_their_file_is_damaged(tmp_path, monkeypatch):
    crops = fetch(tmp_path / "crops", "0" * 64, piece).crops
    chosen = crops.take(np.array([4, 1]))
    device = torch.device("cpu")
    found = stored_features(chosen, device)
    plain = by_rows(features_module.CropFeatures(32), crops[:], device, lambda done, total: None).numpy()
    assert np.array_equal(found[:], plain[[4, 1]])
    (file,) = (path for path in (tmp_path / "crops").iterdir() if ".features-" in path.name)
    whole = file.read_bytes()
    file.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    assert np.array_equal(stored_features(chosen, device)[:], plain[[4, 1]])
    assert file.read_bytes() == whole

    def never(*given):
        raise AssertionError

    monkeypatch.setattr(features_module, "by_rows", never)
    assert np.array_equal(stored_features(chosen, device)[:], plain[[4, 1]])


def test_a_file_that_changes_while_it_is_read_is_told_of_and_kept_out_of_the_cache(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_bytes(b"first")
    with CropReader(cache=tmp_path / "crops") as reader:

        def decode(data):
            for _, content in data:
                yield ("of other bytes", np.zeros((1, 128, 128, 3), np.uint8)) if content else None

        monkeypatch.setattr(reader, "decode", decode)
        with pytest.raises(ChangedMediaError, match="changed while it was read"):
            reader.read("read", "a", [MediaFile(path, "a.png", "a/real")])
    assert not list((tmp_path / "crops").iterdir())


def test_a_folder_that_changed_is_read_anew_where_it_changed(tmp_path, monkeypatch):
    data = tmp_path / "data"
    data.mkdir()
    for number in range(2000):
        (data / f"{number:04}.png").write_bytes(str(number).encode())
    decoded = []

    def read():
        files = [MediaFile(path, path.name, "a/real") for path in sorted(data.iterdir())]
        with CropReader(cache=tmp_path / "crops") as reader:

            def decode(contents):
                for name, content in contents:
                    decoded.append(name)
                    crop = np.full((1, 8, 8, 3), int(content) % 251, np.uint8)
                    yield hashlib.sha256(content).hexdigest(), Decoded("image", "PNG", 8, 8, 1, crop, ())

            monkeypatch.setattr(reader, "decode", decode)
            items = reader.read("read", "a", files)
        kept = [int(path.read_bytes()) % 251 for path in sorted(data.iterdir())]
        assert items.crops[:][:, 0, 0, 0].tolist() == kept
        return decoded.copy(), decoded.clear()

    assert len(read()[0]) == 2000
    assert read()[0] == []
    (data / "!first.png").write_bytes(b"5000")
    (data / "1000.png").unlink()
    (data / "1500.png").write_bytes(b"6000")
    again, _ = read()
    assert 0 < len(again) < 1200, "three changes, each at the price of its piece and at most a few more"


def test_crops_in_a_cache_stay_on_disk(tmp_path):
    found = fetch(tmp_path / "crops", "0" * 64, piece)
    assert isinstance(found.crops, StoredRows)
    assert np.array_equal(found.crops[:], piece().crops)
    assert found.starts.tolist() == [0, 2, 5]

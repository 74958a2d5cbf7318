import hashlib
import os
import time

import numpy as np
import pytest
from s3_server import use

from ingest.settings import IngestSettings
from memory.crops import object_store
from memory.crops.crop_store import (
    CropsDamagedError,
    CropsMissingError,
    CropStore,
    CropsUnavailableError,
    Views,
)
from memory.process import hindrance
from memory.store import Store

CROPS = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)


def the_file(folder):
    (path,) = folder.rglob("*.safetensors")
    return path


@pytest.mark.parametrize(
    "place", ["folder", "memory://forgewatch-test", pytest.param("bucket", marks=pytest.mark.slow)]
)
def test_crops_come_back_as_they_were_and_lie_there_once(request, tmp_path, place):
    places = {"folder": lambda: str(tmp_path / "crops"), "bucket": lambda: request.getfixturevalue("bucket")}
    store = CropStore(places[place]() if place in places else place)
    digest = store.put(CROPS)
    assert store.put(CROPS) == digest
    np.testing.assert_array_equal(store.load(digest), CROPS)
    assert list(store.digests([digest[:2], "zz"])) == [digest]
    assert store.missing([digest, "0" * 64]) == {"0" * 64}
    store.delete_all([digest, "0" * 64])
    assert list(store.digests([digest[:2]])) == []
    with pytest.raises(CropsMissingError):
        store.load(digest)


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_damaged_crops_are_noticed(tmp_path, damage):
    store = CropStore(str(tmp_path))
    digest = store.put(CROPS)
    path = the_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"flip": bytes(content), "truncate": bytes(content[:-9]), "empty": b""}[damage])
    with pytest.raises(CropsDamagedError):
        store.load(digest)


def test_a_crash_before_the_rename_leaves_no_crops_under_their_name(tmp_path, monkeypatch):
    store = CropStore(str(tmp_path))

    def crash(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        store.put(CROPS)
    assert list(store.digests()) == []
    monkeypatch.undo()
    np.testing.assert_array_equal(store.load(store.put(CROPS)), CROPS)


def test_a_picture_lies_with_its_crops_and_goes_with_them(tmp_path):
    store, picture = CropStore(str(tmp_path)), np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    bare, both = store.put_all([Views(CROPS), Views(CROPS, picture)])
    assert bare == store.put(CROPS) != both
    np.testing.assert_array_equal(store.load(both), CROPS)
    crops, shown, _ = store.load_views(both)
    np.testing.assert_array_equal(crops, CROPS)
    np.testing.assert_array_equal(shown, picture)
    assert store.load_views(bare).picture is None
    store.delete_all([bare, both])
    assert list(tmp_path.rglob("*.safetensors")) == []


def test_frames_of_a_video_lie_with_its_crops_and_go_with_them(tmp_path):
    store, picture = CropStore(str(tmp_path)), np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    bare, framed, full = store.put_all(
        [Views(CROPS), Views(CROPS, None, b"frames"), Views(CROPS, picture, b"frames")]
    )
    assert len({bare, framed, full}) == 3
    assert [store.load_views(each).scan for each in (bare, framed, full)] == [None, b"frames", b"frames"]
    np.testing.assert_array_equal(store.load(framed), CROPS)
    np.testing.assert_array_equal(store.load_views(full).picture, picture)
    store.delete_all([bare, framed, full])
    assert list(tmp_path.rglob("*.safetensors")) == []


def crops(number):
    return np.random.default_rng(number).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)


@pytest.mark.slow
def test_other_bytes_under_a_name_are_noticed(s3_server, bucket):
    store = CropStore(bucket)
    digest = store.put(crops(0))
    name, _, prefix = bucket.removeprefix("s3://").partition("/")
    key = f"{prefix}/{digest[:2]}/{digest}.safetensors"
    whole = s3_server.client.get_object(Bucket=name, Key=key)["Body"].read()
    assert hashlib.sha256(whole).hexdigest() == digest
    s3_server.client.put_object(Bucket=name, Key=key, Body=whole[:-1])
    with pytest.raises(CropsDamagedError):
        store.load(digest)


@pytest.mark.slow
def test_where_the_bucket_is_gone_no_crops_are_called_missing(bucket):
    store = CropStore("s3://no-such-bucket/crops")
    for act in (lambda: store.load("0" * 64), lambda: store.put(crops(0)), lambda: list(store.digests())):
        with pytest.raises(CropsUnavailableError, match="bucket"):
            act()
    assert store.hindrance() == ("no crops can be stored: the object store has no bucket no-such-bucket")


@pytest.mark.slow
def test_a_batch_over_a_slow_line_is_put_at_once_and_not_one_after_the_other(line, bucket):
    store = CropStore(bucket)
    line.delay_s = 0.5
    began = time.monotonic()
    digests = store.put_all([Views(crops(number)) for number in range(16)])
    assert time.monotonic() - began < 16 * 0.5  # one after the other: twice that
    assert len(set(digests)) == 16
    line.delay_s = 0
    assert store.missing(digests) == set()


@pytest.mark.slow
def test_a_batch_to_a_server_that_gives_no_answer_fails_in_bounded_time(line, bucket, monkeypatch):
    store = CropStore(bucket)
    line.delay_s = 60
    monkeypatch.setattr(object_store, "CALL_S", 1.0)
    began = time.monotonic()
    with pytest.raises(CropsUnavailableError, match="did not answer"):
        store.put_all([Views(crops(number)) for number in range(32)])
    assert time.monotonic() - began < 15


@pytest.mark.slow
def test_a_memory_whose_bucket_is_missing_or_slow_is_not_ready(line, bucket, tmp_path, monkeypatch):
    store, ingest = (
        Store(f"sqlite:///{tmp_path}/rows.sqlite"),
        IngestSettings(bootstrap_servers="127.0.0.1:1"),
    )
    missing = hindrance(ingest, store, CropStore("s3://no-such-bucket/x"))
    assert missing == "no crops can be stored: the object store has no bucket no-such-bucket"
    there = CropStore(bucket)
    assert "127.0.0.1:1" in str(hindrance(ingest, store, there))  # the next thing that is away
    line.delay_s = 60
    assert hindrance(ingest, store, there) == (
        "no crops can be stored: the object store did not answer within 3 s"
    )
    use(monkeypatch, line.endpoint, "another-secret")
    line.delay_s = 0
    refused = hindrance(ingest, store, CropStore(bucket))
    assert "refused" in str(refused)
    assert "another-secret" not in str(refused)
    store.close()

"""Crops in a real S3 server: none is called missing that may be there, and nothing waits for ever."""

import hashlib
import time
from pathlib import Path

import numpy as np
import pytest
from s3_server import Line, S3Server, use

from ingest.settings import IngestSettings
from memory.crops import object_store
from memory.crops.crop_store import CropsDamagedError, CropsMissingError, CropStore, CropsUnavailableError
from memory.process import hindrance
from memory.store import Store

pytestmark = pytest.mark.slow


def crops(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)


def test_crops_come_back_as_they_were_and_lie_there_once(bucket: str) -> None:
    store = CropStore(bucket)
    digest = store.put(crops(0))
    assert store.put(crops(0)) == digest
    np.testing.assert_array_equal(store.load(digest), crops(0))
    assert list(store.digests([digest[:2], "zz"])) == [digest]
    assert store.missing([digest, "0" * 64]) == {"0" * 64}
    store.delete_all([digest, "0" * 64])
    assert list(store.digests([digest[:2]])) == []
    with pytest.raises(CropsMissingError):
        store.load(digest)


def test_other_bytes_under_a_name_are_noticed(s3_server: S3Server, bucket: str) -> None:
    store = CropStore(bucket)
    digest = store.put(crops(0))
    name, _, prefix = bucket.removeprefix("s3://").partition("/")
    key = f"{prefix}/{digest[:2]}/{digest}.safetensors"
    whole = s3_server.client.get_object(Bucket=name, Key=key)["Body"].read()
    assert hashlib.sha256(whole).hexdigest() == digest
    s3_server.client.put_object(Bucket=name, Key=key, Body=whole[:-1])
    with pytest.raises(CropsDamagedError):
        store.load(digest)


def test_where_the_bucket_is_gone_no_crops_are_called_missing(bucket: str) -> None:
    store = CropStore("s3://no-such-bucket/crops")
    for act in (
        lambda: store.load("0" * 64),
        lambda: store.put(crops(0)),
        lambda: list(store.digests()),
    ):
        with pytest.raises(CropsUnavailableError, match="bucket"):
            act()
    assert store.hindrance() == ("no crops can be stored: the object store has no bucket no-such-bucket")


def test_a_batch_over_a_slow_line_is_put_at_once_and_not_one_after_the_other(line: Line, bucket: str) -> None:
    store = CropStore(bucket)
    line.delay_s = 0.5
    began = time.monotonic()
    digests = store.put_all([crops(number) for number in range(16)])
    assert time.monotonic() - began < 16 * 0.5  # one after the other: twice that
    assert len(set(digests)) == 16
    line.delay_s = 0
    assert store.missing(digests) == set()


def test_a_batch_to_a_server_that_gives_no_answer_fails_in_bounded_time(
    line: Line, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CropStore(bucket)
    line.delay_s = 60
    monkeypatch.setattr(object_store, "CALL_S", 1.0)
    began = time.monotonic()
    with pytest.raises(CropsUnavailableError, match="did not answer"):
        store.put_all([crops(number) for number in range(32)])
    assert time.monotonic() - began < 15


def test_a_memory_whose_bucket_is_missing_refused_or_slow_is_not_ready_and_says_why(
    line: Line, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

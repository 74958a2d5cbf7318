from pathlib import Path
from threading import Event

import numpy as np
import pytest

from ingest.process.health import Heartbeat
from memory import reextract as module
from memory import rows
from memory.features import FEATURE_VERSION, WIDTH, features_of
from memory.index.index import Index
from memory.labels import label
from memory.reextract import Reextracted, reextract

pytestmark = pytest.mark.slow

COUNT = 7
OLD = "of old"
beat = Heartbeat(max_age_s=60).beat


def crops_of(number):
    """As many crops as the number has left when divided by three, and one."""
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (1 + number % 3, 32, 32, 3), dtype=np.uint8)


DATABASES = ("sqlite_url", "postgresql_url")


@pytest.fixture(autouse=True)
def _seven_items_of_an_older_version(store, fill, make, monkeypatch):
    """In the order of their numbers; a batch is two items."""
    monkeypatch.setattr(module, "_BATCH_ITEMS", 2)
    for number in range(COUNT):
        fill([make(number, crops=crops_of(number))])
    with store.write() as connection:
        connection.exec_driver_sql(f"UPDATE exemplars SET feature_version = '{OLD}'")


def held(store, version):
    with store.read() as connection:
        ids = [exemplar.id for exemplar in rows.select_exemplars(connection, feature_version=version)]
        found = rows.select_features(connection, version, ids)
    return dict(zip(found.ids, found.matrix, strict=True))


def stop_after(batches, monkeypatch):
    """An event that the given batch sets once it is written."""
    stop, written = Event(), []
    real = module.renew_features

    def renew(*arguments):
        written.append(None)
        if len(written) == batches:
            stop.set()
        return real(*arguments)

    monkeypatch.setattr(module, "renew_features", renew)
    return stop


def test_every_row_gets_the_mean_features_of_its_stored_crops(store, crops):
    assert reextract(store, crops, Event(), beat) == Reextracted(renewed=COUNT, left_behind=0)
    found = held(store, FEATURE_VERSION)
    assert list(found) == [f"media-0-{number}" for number in range(COUNT)]
    for number, row in enumerate(found.values()):
        each = [features_of(crop[None]) for crop in crops_of(number)]
        np.testing.assert_allclose(row, np.mean(each, 0), rtol=1e-4, atol=1e-4)
    assert reextract(store, crops, Event(), beat) == Reextracted(renewed=0, left_behind=0)


def test_stopped_half_way_it_goes_on_with_the_rows_that_are_left(store, crops, monkeypatch):
    with monkeypatch.context() as patch:
        assert reextract(store, crops, stop_after(2, patch), beat) == Reextracted(renewed=4, left_behind=3)
    assert list(held(store, FEATURE_VERSION)) == [f"media-0-{number}" for number in range(4)]
    assert reextract(store, crops, Event(), beat) == Reextracted(renewed=3, left_behind=0)


def test_a_batch_that_fails_leaves_its_rows_as_they_were(store, crops, monkeypatch):
    real, calls = module.renew_features, []

    def fail_late(*arguments):
        calls.append(None)
        real(*arguments)
        if len(calls) == 2:
            raise OSError("the line broke before the commit")
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(module, "renew_features", fail_late)
        with pytest.raises(OSError, match="before the commit"):
            reextract(store, crops, Event(), beat)
    assert (len(held(store, FEATURE_VERSION)), len(held(store, OLD))) == (2, COUNT - 2)
    assert reextract(store, crops, Event(), beat).renewed == COUNT - 2


def test_rows_whose_crops_are_gone_or_damaged_keep_their_version_and_are_counted(store, crops, settings):
    with store.write() as connection:
        purged = rows.drop(connection, ["media-0-0"])
        digests = [str(e.crops_digest) for e in rows.exemplars_of(connection, ["media-0-1", "media-0-2"])]
    for digest in (*purged, digests[0]):
        crops.delete(digest)
    (path,) = Path(settings.crops_url).rglob(f"{digests[1]}*")
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\1")
    assert reextract(store, crops, Event(), beat) == Reextracted(renewed=COUNT - 3, left_behind=3)
    assert sorted(held(store, OLD)) == ["media-0-0", "media-0-1", "media-0-2"]
    index = Index.open(settings.index_path, store, FEATURE_VERSION, WIDTH)
    assert sorted(index.ids) == [f"media-0-{number}" for number in range(3, COUNT)]


def test_an_index_that_was_open_takes_the_renewed_rows_in(store, crops, settings):
    index = Index.open(settings.index_path, store, FEATURE_VERSION, WIDTH)
    assert index.ids == []
    reextract(store, crops, Event(), beat)
    with store.read() as connection:
        index.catch_up(connection)
    (found,) = index.search(features_of(crops_of(5))[None], 1)
    assert found[0].id == "media-0-5"
    assert len(index.ids) == COUNT


def test_labels_groups_and_shelves_stay_as_they_are(store, crops):
    label(store, ["media-0-3", "media-0-4"], "gan", "ada")
    with store.read() as connection:
        before = rows.select_exemplars(connection)
    reextract(store, crops, Event(), beat)
    with store.read() as connection:
        assert rows.select_exemplars(connection) == before

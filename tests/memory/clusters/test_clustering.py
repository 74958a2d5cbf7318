import io
from datetime import UTC, datetime, timedelta
from itertools import chain
from threading import Event, Thread

import numpy as np
import pytest
from PIL import Image

from memory.clusters import clustering
from memory.clusters import views as views_module
from memory.clusters.clustering import KEPT_MS, keep_clustered, renew
from memory.clusters.review import cluster_sheet, contact_sheet, freshness, list_clusters, members_of
from memory.clusters.views import UnknownClusterError
from memory.labels import label, undo
from memory.records import Clustering
from memory.rows import count_clusters, now_ms
from memory.store import StoreUnavailableError

DATABASES = ("sqlite_url", "postgresql_url")


def shown(store):
    return [cluster.id for cluster in list_clusters(store)]


def only(store):
    (one,) = list_clusters(store)
    return one


@pytest.mark.slow
@pytest.mark.parametrize("few", [5, 20])
def test_a_label_goes_to_what_was_shown_though_the_list_was_computed_anew(store, settings, fill, make, few):
    fill([make(i) for i in range(few)])
    renew(store, settings)
    seen = only(store)
    assert seen.unclustered == (few == 5)
    fill([make(i) for i in range(few, few + 2)])
    renew(store, settings)
    assert seen.id not in shown(store)
    assert [e.id for e in members_of(store, seen.id)] == list(seen.members)
    label(store, [seen.members[0]], "gan", "ada")
    assert [e.id for e in members_of(store, seen.id)] == list(seen.members[1:])


@pytest.mark.slow
def test_nothing_is_computed_or_written_until_something_changes(store, settings, fill, make, monkeypatch):
    computed = 0

    def counted(*given):
        nonlocal computed
        computed += 1
        return cluster(*given)

    cluster = clustering.cluster
    monkeypatch.setattr(clustering, "cluster", counted)
    fill([make(i) for i in range(20)])
    renew(store, settings)
    revision, before = store.revision(), list_clusters(store)
    seen = renew(store, settings)
    assert renew(store, settings, seen) == seen == revision
    with store.write():  # as other processes' offsets do
        pass
    renew(store, settings, seen)
    assert (computed, store.revision(), list_clusters(store)) == (1, revision + 1, before)
    number = label(store, [before[0].members[0]], "gan", "ada")
    renew(store, settings)
    undo(store, number, "ada")
    renew(store, settings)
    assert computed == 3
    assert list_clusters(store) == before


def test_after_each_change_the_list_holds_what_waits(store, settings, fill, make):
    renew(store, settings)
    assert (list_clusters(store), freshness(store).newer) == ([], 0)
    fill([make(i) for i in range(12)])
    assert freshness(store).newer == 12
    renew(store, settings)
    assert (len(only(store).members), freshness(store).newer) == (12, 0)
    label(store, only(store).members, "gan", "ada")
    renew(store, settings)
    assert list_clusters(store) == []


def test_all_that_waits_is_in_the_list_however_many_are_compared_at_once(store, settings, fill, make):
    fill([make(i) for i in range(60)])
    renew(store, settings.model_copy(update={"max_clustered": 20}))
    assert sorted(m for cluster in list_clusters(store) for m in cluster.members) == sorted(
        f"media-0-{i}" for i in range(60)
    )


def test_a_slow_process_puts_no_older_list_over_a_newer_one(store, settings, fill, make, monkeypatch):
    fill([make(i) for i in range(10)])
    cluster = clustering.cluster

    def overtaken(*given):
        monkeypatch.undo()
        fill([make(i) for i in range(10, 20)])
        renew(store, settings)
        return cluster(*given)

    monkeypatch.setattr(clustering, "cluster", overtaken)
    renew(store, settings)
    assert len(only(store).members) == 20
    assert freshness(store).newer == 0


def test_two_clusters_that_would_bear_one_name_bear_two(store, settings, fill, make, monkeypatch):
    names = views_module.names_of

    def colliding(members):
        return chain(["bcd234"], names(members))

    monkeypatch.setattr(views_module, "names_of", colliding)
    fill([make(i) for i in range(10)])
    renew(store, settings)
    first = only(store)
    fill([make(i) for i in range(10, 20)])
    renew(store, settings)
    assert first.id == "bcd234" != only(store).id
    assert [e.id for e in members_of(store, first.id)] == list(first.members)
    assert len(members_of(store, only(store).id)) == 20


def test_what_left_the_list_is_known_for_a_day_what_is_in_it_always(store, settings, fill, make, monkeypatch):
    began = now_ms()

    def listed_on(day, item):
        monkeypatch.setattr(clustering, "now_ms", lambda: began + round(day * KEPT_MS))
        fill([make(item)])
        renew(store, settings)

    fill([make(i) for i in range(10)])
    renew(store, settings)
    first = only(store).id
    for day, item in ((9.0, 11), (9.9, 12)):
        listed_on(day, item)
        assert len(members_of(store, first)) == 10
    listed_on(10.1, 13)
    with pytest.raises(UnknownClusterError, match="list the clusters again"):
        members_of(store, first)


def test_the_thread_outlives_a_fault_and_ends_when_it_is_told(store, settings, fill, make, monkeypatch):
    fill([make(i) for i in range(10)])
    stop, tried, done = Event(), Event(), Event()
    monkeypatch.setattr(clustering, "_REST", 0)

    def failing_once(*given):
        if not tried.is_set():
            tried.set()
            raise StoreUnavailableError("the memory's database failed: it is locked")
        revision = renew(*given)
        done.set()
        return revision

    monkeypatch.setattr(clustering, "renew", failing_once)
    quick = settings.model_copy(update={"clusters_interval_s": 0.01})
    thread = Thread(target=keep_clustered, args=(quick, stop))
    thread.start()
    assert done.wait(60)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert len(only(store).members) == 10


def test_the_clusters_that_wait_are_counted_without_what_fits_nowhere(store, settings, fill, make):
    def waiting():
        with store.read() as connection:
            return count_clusters(connection)

    assert waiting() == 0
    fill([make(i) for i in range(20)])
    renew(store, settings)
    assert not only(store).unclustered
    assert waiting() == 1
    label(store, list(only(store).members), "ignore", "ada")
    fill([make(i) for i in range(20, 25)])
    renew(store, settings)
    assert only(store).unclustered
    assert waiting() == 0


def test_what_was_never_computed_is_told_and_has_no_clusters(store, fill, make):
    fill([make(i) for i in range(3)])
    assert list_clusters(store) == []
    assert freshness(store) == Clustering(computed_at=None, newer=3)
    with pytest.raises(UnknownClusterError, match="list the clusters again"):
        members_of(store, "bcd234")


def test_to_look_writes_nothing_and_says_how_fresh_the_list_is(store, settings, fill, make):
    fill([make(i) for i in range(20)])
    renew(store, settings)
    fill([make(i) for i in range(20, 23)])
    revision, began = store.revision(), datetime.now(UTC)
    (shown,) = list_clusters(store)
    fresh = freshness(store)
    assert len(members_of(store, shown.id)) == len(shown.members) == 20
    assert store.revision() == revision
    assert fresh.newer == 3
    assert fresh.computed_at is not None
    assert abs(began - fresh.computed_at) < timedelta(minutes=1)


def test_what_is_labelled_leaves_the_list_at_once(store, settings, fill, make):
    fill([make(i) for i in range(20)])
    renew(store, settings)
    (shown,) = list_clusters(store)
    label(store, shown.members[:5], "gan", "ada")
    assert [cluster.members for cluster in list_clusters(store)] == [shown.members[5:]]
    label(store, shown.members[5:], "gan", "ada")
    assert list_clusters(store) == []


def test_a_sheet_shows_every_crop_pixel_by_pixel():
    rng = np.random.default_rng(0)
    tiles = [(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8), f"id-{i}", "note") for i in range(8)]
    sheet = np.asarray(Image.open(io.BytesIO(contact_sheet("title", tiles))))
    windows = np.lib.stride_tricks.sliding_window_view(sheet, (32, 32), axis=(0, 1))
    for crop, _, _ in tiles:
        corner = (windows[..., 0, 0] == crop[0, 0]).all(-1)
        assert any(
            np.array_equal(sheet[y : y + 32, x : x + 32], crop)
            for y, x in zip(*corner.nonzero(), strict=True)
        )


def test_the_sheet_of_a_cluster_is_a_png_of_its_first_members(store, crops, settings, fill, make):
    fill([make(i) for i in range(20)])
    renew(store, settings)
    (shown,) = list_clusters(store)
    whole, part = (Image.open(io.BytesIO(cluster_sheet(store, crops, shown.id, n))) for n in (20, 6))
    assert whole.format == "PNG"
    assert whole.height > part.height

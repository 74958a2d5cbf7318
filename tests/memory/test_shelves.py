from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import pytest

from memory import rows
from memory.crop_store import CropStore
from memory.intake import Arrival
from memory.labels import LabelError, label, undo
from memory.shelves import apply_budget, purge_expired, sweep
from memory.store import Store

Make = Callable[..., Arrival]
Fill = Callable[..., object]
LATE = round(datetime(2026, 6, 1, tzinfo=UTC).timestamp() * 1000)


def shelf(store: Store, name: str) -> list[str]:
    with store.read() as connection:
        return [e.id for e in rows.select_exemplars(connection, shelf=name)]  # type: ignore[arg-type]


def test_the_budget_keeps_each_class_in_its_share_and_deletes_the_rest_from_disk(
    store: Store, crops: CropStore, fill: Fill, make: Make
) -> None:
    fill([make(i) for i in range(60)])
    label(store, [f"media-0-{i}" for i in range(40)], "gan", "ada")
    label(store, [f"media-0-{i}" for i in range(40, 60)], "real", "ada")
    held_back = shelf(store, "held-back")
    done = apply_budget(store, crops, 11, 1000)
    assert done.kept == {"gan": 5, "real": 5}
    with store.read() as connection:
        kept = rows.select_exemplars(connection, shelf="rehearsal")
        dropped = rows.select_exemplars(connection, shelf="dropped")
    assert Counter(e.family for e in kept) == {"gan": 5, "real": 5}
    assert len(dropped) == sum(done.dropped.values()) > 0
    assert {e.crops_digest for e in dropped} == {None}
    assert {e.family for e in dropped} == {"gan", "real"}
    assert shelf(store, "held-back") == held_back
    assert len(list(crops.digests())) == 60 - len(dropped)


def test_a_budget_twice_changes_nothing_more_and_a_smaller_one_keeps_a_part(
    store: Store, crops: CropStore, fill: Fill, make: Make
) -> None:
    fill([make(i) for i in range(40)])
    label(store, [f"media-0-{i}" for i in range(40)], "gan", "ada")
    apply_budget(store, crops, 10, 1000)
    ten = set(shelf(store, "rehearsal"))
    apply_budget(store, crops, 10, 1000)
    assert set(shelf(store, "rehearsal")) == ten
    apply_budget(store, crops, 4, 1000)
    assert set(shelf(store, "rehearsal")) < ten


def test_one_source_cannot_fill_a_family(store: Store, crops: CropStore, fill: Fill, make: Make) -> None:
    fill([make(i, source="flood" if i < 50 else "quiet") for i in range(60)])
    label(store, [f"media-0-{i}" for i in range(60)], "gan", "ada")
    apply_budget(store, crops, 1000, 6)
    with store.read() as connection:
        sources = Counter(e.source for e in rows.select_exemplars(connection, shelf="rehearsal"))
    assert sources["flood"] == 6
    assert 0 < sources["quiet"] <= 6


def test_crops_that_two_items_share_stay_as_long_as_one_needs_them(
    store: Store, crops: CropStore, fill: Fill, make: Make
) -> None:
    same = make(1).crops
    fill([make(1, crops=same), make(2, crops=same, received_at=datetime(2027, 1, 1, tzinfo=UTC))])
    assert purge_expired(store, crops, LATE) == 1
    with store.read() as connection:
        (left,) = rows.select_exemplars(connection, shelf="unknown")
    np.testing.assert_array_equal(crops.load(str(left.crops_digest)), same)


def test_unlabelled_and_ignored_items_are_purged_past_their_time_and_labelled_ones_stay(
    store: Store, crops: CropStore, fill: Fill, make: Make
) -> None:
    fill([make(i) for i in range(9)])
    label(store, ["media-0-0", "media-0-1"], "gan", "ada")
    label(store, ["media-0-2"], "ignore", "ada")
    assert purge_expired(store, crops, 0) == 0
    assert purge_expired(store, crops, LATE) == 7
    assert len(shelf(store, "dropped")) == 7
    assert len(list(crops.digests())) == 2
    assert purge_expired(store, crops, LATE) == 0


def test_what_was_purged_cannot_be_labelled_and_an_undo_does_not_bring_it_back(
    store: Store, crops: CropStore, fill: Fill, make: Make
) -> None:
    fill([make(i) for i in range(20)])
    number = label(store, [f"media-0-{i}" for i in range(20)], "gan", "ada")
    apply_budget(store, crops, 1, 1000)
    dropped = shelf(store, "dropped")
    with pytest.raises(LabelError, match="purged"):
        label(store, dropped[:1], "real", "ada")
    undo(store, number, "ada")
    assert shelf(store, "dropped") == dropped
    assert len(shelf(store, "unknown")) == 20 - len(dropped)


def test_crops_without_a_row_are_swept_and_others_are_not(
    store: Store, crops: CropStore, fill: Fill, make: Make
) -> None:
    fill([make(1)])
    orphan = crops.put(make(2).crops)
    assert sweep(store, crops) == 1
    assert not crops.holds(orphan)
    assert sweep(store, crops) == 0
    assert len(list(crops.digests())) == 1


def test_features_of_another_version_are_neither_compared_nor_dropped(
    store: Store, crops: CropStore, fill: Fill, make: Make
) -> None:
    fill([make(i, group="b") for i in range(10)])
    label(store, [f"media-0-{i}" for i in range(10)], "gan", "ada")
    with store.write() as connection:
        connection.exec_driver_sql("UPDATE exemplars SET feature_version = 'old' WHERE id < 'media-0-5'")
    done = apply_budget(store, crops, 2, 1000)
    assert (done.kept, done.dropped) == ({"gan": 2}, {"gan": 3})
    assert {f"media-0-{i}" for i in range(5)} < set(shelf(store, "rehearsal"))

import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from PIL import Image

from memory.clusters.clustering import renew
from memory.clusters.review import (
    Freshness,
    Tile,
    UnknownClusterError,
    cluster_sheet,
    contact_sheet,
    freshness,
    list_clusters,
    members_of,
)
from memory.crops.crop_store import CropStore
from memory.intake import Arrival
from memory.labels import label
from memory.settings import MemorySettings
from memory.store import Store

Make = Callable[..., Arrival]
Fill = Callable[..., object]


def test_what_was_never_computed_is_told_and_has_no_clusters(store: Store, fill: Fill, make: Make) -> None:
    fill([make(i) for i in range(3)])
    assert list_clusters(store) == []
    assert freshness(store) == Freshness(None, 3)
    with pytest.raises(UnknownClusterError, match="list the clusters again"):
        members_of(store, "bcd234")


def test_to_look_writes_nothing_and_says_how_fresh_the_list_is(
    store: Store, settings: MemorySettings, fill: Fill, make: Make
) -> None:
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


def test_what_is_labelled_leaves_the_list_at_once(
    store: Store, settings: MemorySettings, fill: Fill, make: Make
) -> None:
    fill([make(i) for i in range(20)])
    renew(store, settings)
    (shown,) = list_clusters(store)
    label(store, shown.members[:5], "gan", "ada")
    assert [one.members for one in list_clusters(store)] == [shown.members[5:]]
    label(store, shown.members[5:], "gan", "ada")
    assert list_clusters(store) == []


def test_a_sheet_shows_every_crop_pixel_by_pixel() -> None:
    rng = np.random.default_rng(0)
    tiles = [Tile(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8), f"id-{i}", "note") for i in range(8)]
    sheet = np.asarray(Image.open(io.BytesIO(contact_sheet("title", tiles))))
    windows = np.lib.stride_tricks.sliding_window_view(sheet, (32, 32), axis=(0, 1))
    for tile in tiles:
        corner = (windows[..., 0, 0] == tile.crop[0, 0]).all(-1)
        assert any(
            np.array_equal(sheet[y : y + 32, x : x + 32], tile.crop)
            for y, x in zip(*corner.nonzero(), strict=True)
        )


def test_the_sheet_of_a_cluster_is_a_png_of_its_first_members(
    store: Store, crops: CropStore, settings: MemorySettings, fill: Fill, make: Make
) -> None:
    fill([make(i) for i in range(20)])
    renew(store, settings)
    (shown,) = list_clusters(store)
    whole, part = (Image.open(io.BytesIO(cluster_sheet(store, crops, shown.id, n))) for n in (20, 6))
    assert whole.format == "PNG"
    assert whole.height > part.height

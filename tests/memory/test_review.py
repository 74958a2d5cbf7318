import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from memory.contact_sheet import Tile, contact_sheet
from memory.crop_store import CropStore
from memory.intake import Arrival
from memory.labels import label
from memory.review import UnknownClusterError, cluster_sheet, find_clusters, members_of
from memory.settings import MemorySettings
from memory.store import Store

Make = Callable[..., Arrival]
Fill = Callable[..., object]


def test_a_cluster_means_what_was_shown_and_not_what_came_later(
    store: Store, settings: MemorySettings, fill: Fill, make: Make
) -> None:
    fill([make(i) for i in range(20)])
    (shown,) = find_clusters(store, settings)
    fill([make(i) for i in range(20, 30)])
    find_clusters(store, settings)
    assert [e.id for e in members_of(store, shown.id)] == list(shown.members)
    label(store, [shown.medoid], "gan", "ada")
    assert [e.id for e in members_of(store, shown.id)] == list(shown.members[1:])


def test_to_look_twice_writes_nothing(store: Store, settings: MemorySettings, fill: Fill, make: Make) -> None:
    fill([make(i) for i in range(20)])
    first = find_clusters(store, settings)
    revision = store.revision()
    assert find_clusters(store, settings) == first
    assert store.revision() == revision


def test_an_empty_shelf_has_no_clusters(store: Store, settings: MemorySettings) -> None:
    assert find_clusters(store, settings) == []
    with pytest.raises(UnknownClusterError, match="list the clusters again"):
        members_of(store, "nobody")


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
    (shown,) = find_clusters(store, settings)
    whole, part = (Image.open(io.BytesIO(cluster_sheet(store, crops, shown.id, n))) for n in (20, 6))
    assert whole.format == "PNG"
    assert whole.height > part.height

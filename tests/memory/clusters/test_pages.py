import json
from itertools import pairwise

import numpy as np
import pytest
from sqlalchemy import insert

from memory.clusters import pages
from memory.clusters.clustering import renew
from memory.clusters.pages import facts_of, order_members, page_of, views_of
from memory.clusters.review import label_cluster, list_clusters
from memory.crops.crop_store import CropsMissingError
from memory.features import WIDTH
from memory.labels import label
from memory.rows import UnknownExemplarError, drop, now_ms
from memory.schema import clusters, exemplars


@pytest.mark.parametrize("order", ["typical", "farthest", "random"])
def test_the_pages_of_a_cluster_hold_each_member_once(store, settings, fill, make, order):
    fill([make(number) for number in range(12)])
    renew(store, settings)
    (cluster,) = list_clusters(store)
    pages = [page_of(store, cluster.id, order, offset, 5, seed=7) for offset in (0, 5, 10, 15)]
    ids = [member.id for page in pages for member in page.members]
    assert sorted(ids) == sorted(cluster.members)
    assert [len(page.members) for page in pages] == [5, 5, 2, 0]
    assert {page.size for page in pages} == {12}
    expected = {"typical": cluster.members, "farthest": cluster.members[::-1]}
    assert ids == list(expected.get(order, order_members(cluster.members, "random", 7)))


def test_what_leaves_a_cluster_moves_no_other_past_another(store, settings, fill, make):
    ids = [f"media-0-{number}" for number in range(50)]
    before = list(order_members(ids, "random", 3))
    assert before != list(order_members(ids, "random", 4))
    left = [i for i in before if i not in ids[:20]]
    assert list(order_members(ids[20:], "random", 3)) == left


def test_a_member_says_what_can_be_shown_of_it(store, settings, crops, fill, make):
    fill(
        [
            make(0, verdict=json.dumps({"map": {"png": ""}})),
            make(1, verdict=json.dumps({"map": None})),
            make(2),
        ]
    )
    renew(store, settings)
    (cluster,) = list_clusters(store)
    found = {m.id: m for m in page_of(store, cluster.id, "typical", 0, 9).members}
    assert [found[f"media-0-{n}"].has_map for n in range(3)] == [True, False, False]
    assert {m.crops for m in found.values()} == {2}
    assert (views_of(store, crops, "media-0-1")[1].crops == make(1).crops).all()
    with store.write() as connection:
        drop(connection, ["media-0-1"])
    with pytest.raises(CropsMissingError, match="the crops of media-0-1 were purged"):
        views_of(store, crops, "media-0-1")
    with pytest.raises(UnknownExemplarError, match="no exemplar media-0-9"):
        views_of(store, crops, "media-0-9")


def test_what_very_many_have_in_common_is_counted_over_an_even_share(store, fill, make, monkeypatch):
    fill([make(number, source=f"camera-{number % 2}") for number in range(12)])
    ids = [f"media-0-{number}" for number in range(12)]
    assert (facts_of(store, ids).items, facts_of(store, ids).sources) == (12, {"camera-0": 6, "camera-1": 6})
    monkeypatch.setattr(pages, "_LOOKED_AT", 5)
    # Of each three one.
    assert (facts_of(store, ids).items, facts_of(store, ids).sources) == (4, {"camera-0": 2, "camera-1": 2})
    assert facts_of(store, []).items == 0


ITEMS, CLUSTERS = 100_000, 1_000


@pytest.fixture
def large(store):
    """A cluster of half of 100,000 waiting items, and the name of it; the others lie in 999 more."""
    texts = {"media_digest": "d", "crops_digest": "c", "source": "s", "group": "g", "verdict": "{}"}
    row = texts | dict.fromkeys(("crop_count", "received_ms", "revision"), 1)
    row |= {"shelf": "unknown", "feature_version": "1", "features": bytes(4 * WIDTH)}
    ids = [f"forgewatch.media-{number % 7}-{number}" for number in range(ITEMS)]
    cut = np.linspace(ITEMS // 2, ITEMS, CLUSTERS).astype(int)
    parts = [ids[: cut[0]], *(ids[a:b] for a, b in pairwise(cut))]
    with store.write() as connection:
        connection.execute(insert(exemplars), [row | {"id": i, "media_digest": i} for i in ids])
        shown = {"shown_ms": now_ms(), "spread": 1.0, "unclustered": False}
        rows = [
            {"id": f"c{n:05}", "place": n, "members": json.dumps(p), **shown} for n, p in enumerate(parts)
        ]
        connection.execute(insert(clusters), rows)
    return "c00000"


@pytest.mark.slow
def test_pages_of_100_000_items_in_1_000_clusters_hold_what_waits(store, large):
    assert len(list_clusters(store)) == CLUSTERS
    for order in ("typical", "farthest", "random"):
        assert len(page_of(store, large, order, 40_000, 48).members) == 48
    label(store, [f"forgewatch.media-{n % 7}-{n}" for n in range(100)], "gan", "ada")
    assert page_of(store, large, "typical", 0, 1).size == ITEMS // 2 - 100
    assert len(label_cluster(store, large, "vae", "bob")[1]) == ITEMS // 2 - 100
    assert large not in {c.id for c in list_clusters(store)}

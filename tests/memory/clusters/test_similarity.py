"""More like these, and the labelled exemplars that a cluster is nearest to."""

import json
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.metrics import roc_auc_score
from sqlalchemy import insert

from memory.clusters import pages
from memory.clusters.clustering import renew
from memory.clusters.pages import facts_of, order_members, page_of, views_of
from memory.clusters.review import label_cluster, list_clusters
from memory.clusters.similarity import NothingMarkedError, alike, nearest_known, towards
from memory.crops.crop_store import CropsMissingError
from memory.features import WIDTH
from memory.index import shared_index
from memory.index.shared_index import SharedIndex
from memory.labels import label
from memory.rows import UnknownExemplarError, drop, now_ms
from memory.schema import clusters, exemplars

COLUMNS = 24


@pytest.fixture
def shared(store, settings, monkeypatch):
    monkeypatch.setattr(shared_index, "_PATIENCE_S", 60)  # a busy machine
    return SharedIndex(store, settings.index_path)


@pytest.fixture
def put(store, fill, make):
    """Remembers items of these features; called a family where one is given."""

    def remembered(name, matrix, family=None):
        ids = [f"{name}-{number}" for number in range(len(matrix))]
        base = 1000 * (1 + sum(map(ord, name)))
        rows = zip(ids, matrix.astype(np.float32), strict=True)
        fill([make(base + n, id=i, features=x) for n, (i, x) in enumerate(rows)], near=0)
        if family is not None:
            label(store, ids, family, "ada")
        return ids

    return remembered


def two_kinds(rng):
    """A covariance that all kinds share, and a difference of two kinds where it is narrow."""
    axes, _ = np.linalg.qr(rng.normal(size=(COLUMNS, COLUMNS)))
    spread = np.geomspace(8, 0.3, COLUMNS)
    return (axes * spread**2) @ axes.T, axes[:, -4:].sum(1) * 0.75


def test_five_marks_part_two_kinds_nearly_as_the_true_distributions_do(store, shared, put):
    rng = np.random.default_rng(5)
    covariance, apart = two_kinds(rng)
    draw = lambda mean, n: rng.multivariate_normal(mean, covariance, n)  # noqa: E731
    put("real", draw(np.zeros(COLUMNS), 300), "real")
    kinds = draw(apart, 60), draw(-apart, 60)
    mine, others = put("mine", kinds[0]), put("other", kinds[1])
    ranked = alike(store, shared, [*others, *mine], mine[:5])
    assert ranked[:5] == mine[:5]
    assert sorted(ranked) == sorted([*mine, *others])
    rest = [*mine[5:], *others]
    auc = roc_auc_score([i in mine for i in rest], [-ranked.index(i) for i in rest])
    x = np.concatenate([kinds[0][5:], kinds[1]])
    likelihood = [multivariate_normal(mean, covariance).logpdf(x) for mean in (apart, -apart)]
    best = roc_auc_score([i in mine for i in rest], likelihood[0] - likelihood[1])
    plain = roc_auc_score([i in mine for i in rest], -np.linalg.norm(x - kinds[0][:5].mean(0), axis=1))
    assert best > 0.99
    assert auc > best - 0.05
    assert plain < auc - 0.2  # distance alone does not see what lies where all kinds are narrow


def test_the_direction_is_fishers_where_the_reals_are_many():
    rng = np.random.default_rng(2)
    covariance, apart = two_kinds(rng)
    reals = rng.multivariate_normal(np.zeros(COLUMNS), covariance, 20_000)
    marked = np.tile(apart, (5, 1))
    found = towards(marked.astype(np.float32), np.zeros(COLUMNS), reals.astype(np.float32))
    fisher = np.linalg.solve(covariance, apart)
    assert found @ fisher / np.linalg.norm(found) / np.linalg.norm(fisher) > 0.99
    alone = towards(marked.astype(np.float32), np.zeros(COLUMNS), reals[:1].astype(np.float32))
    assert np.allclose(alone, apart)


def test_marks_elsewhere_do_not_count_and_what_cannot_be_compared_comes_last(store, shared, put):
    rng = np.random.default_rng(0)
    ids = put("one", rng.normal(size=(6, COLUMNS)))
    (gone,) = put("gone", rng.normal(size=(1, COLUMNS)))
    with store.write() as connection:
        drop(connection, [gone])
    ranked = alike(store, shared, [gone, *ids], [ids[2], "elsewhere"])
    assert (ranked[0], ranked[-1]) == (ids[2], gone)
    assert alike(store, shared, [gone, *ids], [gone])[0] == gone
    for marks in ([], ["elsewhere"]):
        with pytest.raises(NothingMarkedError, match="five are enough"):
            alike(store, shared, ids, marks)


def test_the_nearest_known_are_those_that_numpy_finds(store, shared, put):
    rng = np.random.default_rng(1)
    assert nearest_known(store, shared, ["nothing"], 3) == []
    waiting, ignored = rng.normal(size=(30, COLUMNS)), rng.normal(size=(5, COLUMNS)) / 9
    known = {name: rng.normal(size=(20, COLUMNS)) for name in ("real", "gan")}
    ids = put("waiting", waiting)
    assert nearest_known(store, shared, ids, 3) == []
    put("ignored", ignored, "ignore")
    labelled = {name: put(name, matrix, name) for name, matrix in known.items()}
    found = nearest_known(store, shared, ids[3:], 4)
    raw = np.concatenate([waiting, ignored, *known.values()]).astype(np.float32)
    with shared.current() as index:
        z = index.scale(raw)
    distances = np.linalg.norm(z[35:] - z[3], axis=1)
    names = [(i, name) for name in known for i in labelled[name]]
    expected = np.argsort(distances)[:4]
    assert [(e.id, e.family) for e in found] == [names[i] for i in expected]
    assert [e.distance for e in found] == pytest.approx(distances[expected], abs=2e-3)


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
    row = {
        "media_digest": "d",
        "crops_digest": "c",
        "crop_count": 1,
        "source": "s",
        "group": "g",
        "shelf": "unknown",
        "received_ms": 1,
        "features": bytes(4 * WIDTH),
        "feature_version": "1",
        "verdict": "{}",
        "revision": 1,
    }
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

import tracemalloc
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from memory.clusters.clusters import cluster, describe
from memory.clusters.views import names_of
from memory.records import is_cluster_id

WIDTH = 60
KINDS = {"real": 0.0, "gan": 1.0, "blend": 2.0, "new": 3.0, "newer": 4.0}


def draw(kind, count, seed):
    """Each kind is shifted by 4 deviations of the noise on 4 features of its own."""
    rng = np.random.default_rng([seed, round(KINDS[kind])])
    rows = rng.normal(size=(count, WIDTH))
    first = 5 * round(KINDS[kind])
    rows[:, first : first + 4] += 0 if kind == "real" else 4
    return rows.astype(np.float32)


def shelf(**counts):
    ids = [f"{kind}-{i}" for kind, n in counts.items() for i in range(n)]
    return ids, np.concatenate([draw(kind, n, 1) for kind, n in counts.items()])


def known():
    kinds = ("real", "gan", "blend")
    return np.concatenate([draw(k, 80, 2) for k in kinds]), [k for k in kinds for _ in range(80)]


def kinds(found):
    return Counter(member.split("-")[0] for member in found.members)


def test_a_new_family_gathers_in_one_cluster_though_others_lie_between():
    found = cluster(*shelf(new=40, real=9, gan=4, blend=4), *known(), smallest=8)
    first = found[0]
    assert first.resembles is None
    assert kinds(first)["new"] >= 38
    assert len(first.members) - kinds(first)["new"] <= 2
    assert sum(kinds(c)["new"] for c in found[1:]) <= 2


def test_strayed_reals_are_shown_as_what_they_resemble():
    found = cluster(*shelf(new=40, real=20), *known(), smallest=8)
    (strayed,) = [c for c in found if c.resembles == "real"]
    assert kinds(strayed)["real"] >= 16
    assert found.index(strayed) > 0


def test_two_new_families_that_stand_clearly_apart_are_two_clusters():
    found = [c for c in cluster(*shelf(new=40, newer=30), *known(), smallest=8) if not c.unclustered]
    assert [max(kinds(c)) for c in found if c.resembles is None] == ["new", "newer"]
    assert all(max(kinds(c).values()) / len(c.members) > 0.95 for c in found)


@pytest.mark.parametrize("seed", range(3))
def test_one_family_is_not_cut_in_two(seed):
    ids = [str(i) for i in range(60)]
    found = cluster(ids, draw("new", 60, 10 + seed), *known(), smallest=8)
    assert len(found[0].members) >= 57


def test_the_same_items_give_the_same_names_in_any_order():
    ids, raw = shelf(new=30, real=9, gan=9)
    mixed = np.random.default_rng(0).permutation(len(ids))
    assert cluster(ids, raw, *known(), smallest=8) == cluster(
        [ids[i] for i in mixed], raw[mixed], *known(), smallest=8
    )


def test_every_item_lies_in_exactly_one_cluster_and_members_are_ordered_by_closeness():
    ids, raw = shelf(new=30, real=3, gan=5, blend=12)
    found = cluster(ids, raw, *known(), smallest=8)
    assert sorted(m for c in found for m in c.members) == sorted(ids)
    for c in found:
        assert c.distances[0] == 0
        assert list(c.distances) == sorted(c.distances)
        assert c.spread == pytest.approx(np.sqrt(np.mean(np.square(c.distances))))
        assert [c.unclustered for c in found if len(c.members) < 8] in ([], [True])


def test_a_clusters_names_follow_from_its_members_alone_and_no_two_are_the_same():
    members = [f"media-0-{i}" for i in range(9)]
    names = list(islice(names_of(members), 50))
    assert names == list(islice(names_of(members[::-1]), 50))
    assert len(set(names)) == 50
    assert all(map(is_cluster_id, names))
    assert next(names_of(members[:-1])) != names[0]


@pytest.mark.parametrize(
    "name", ["forgewatch.media-0-17", "import-bcd234", "bcd23", "bcd2345", "abcdef", "unclustered", ""]
)
def test_no_exemplars_id_passes_for_a_clusters(name):
    assert not is_cluster_id(name)


@pytest.mark.slow
@pytest.mark.parametrize("names", [1, 3])
def test_a_dozen_sources_are_a_dozen_clusters_and_one_kind_by_several_names_is_one(names):
    rng = np.random.default_rng(0)
    raw = (np.repeat(rng.normal(size=(12, WIDTH)), 24, axis=0) + rng.normal(size=(288, WIDTH))).astype("f4")
    ids = [f"{kind}-{i}" for kind in range(12) for i in range(24)]
    sources = [f"{name.split('-')[0]}-{i % names}" for i, name in enumerate(ids)]
    found, heap = (cluster(ids, raw, raw[:0], [], 8, 2000, names) for names in (sources, ()))
    assert [len(kinds(c)) for c in found] == 12 * [1]
    assert max(len(kinds(c)) for c in heap) > 3


def test_a_few_unknowns_wait_unclustered():
    found = cluster(*shelf(new=5), *known(), smallest=8)
    assert [(c.unclustered, len(c.members)) for c in found] == [(True, 5)]


@pytest.mark.parametrize("count", [0, 1, 2, 30])
def test_without_anything_labelled_the_shelf_is_clustered_by_itself(count):
    found = cluster(
        [str(i) for i in range(count)],
        draw("new", count, 1),
        np.zeros((0, WIDTH), np.float32),
        [],
        smallest=8,
    )
    assert sum(len(c.members) for c in found) == count
    assert len(found) == (count > 0)


def test_identical_items_are_no_error():
    raw = np.repeat(draw("new", 1, 1), 20, axis=0)
    found = cluster([str(i) for i in range(20)], raw, *known(), smallest=8)
    assert sum(len(c.members) for c in found) == 20
    alone = cluster([str(i) for i in range(20)], raw, np.zeros((0, WIDTH), np.float32), [], smallest=8)
    assert [len(c.members) for c in alone] == [20]


def test_up_to_the_most_that_are_compared_nothing_depends_on_that_number():
    ids, raw = shelf(new=30, newer=20, real=9)
    found = cluster(ids, raw, *known(), 8, len(ids))
    assert found == cluster(ids, raw, *known(), 8, 10**6)
    assert found != cluster(ids, raw, *known(), 8, len(ids) - 1)


@pytest.mark.slow
def test_of_more_than_can_be_compared_all_are_clustered_and_a_small_family_shows_beside_floods():
    ids, raw = shelf(new=3000, real=1500, newer=60)
    found = cluster(ids, raw, *known(), 8, 400)
    assert sorted(m for c in found for m in c.members) == sorted(ids)
    named = [c for c in found if not c.unclustered]
    flood, small = (max(named, key=lambda c, kind=kind: kinds(c)[kind]) for kind in ("new", "newer"))
    assert kinds(flood)["new"] >= 2850
    assert kinds(small)["newer"] >= 45
    assert kinds(small)["newer"] / len(small.members) >= 0.8
    (strayed,) = [c for c in named if c.resembles == "real"]
    assert kinds(strayed)["real"] >= 1350
    assert all(c.distances[0] == 0 and list(c.distances) == sorted(c.distances) for c in found)


@pytest.mark.slow
def test_among_many_a_new_item_changes_little_and_the_order_nothing():
    ids, raw = shelf(new=900, newer=600)
    found = cluster(ids, raw, *known(), 8, 300)
    mixed = np.random.default_rng(0).permutation(len(ids))
    assert found == cluster([ids[i] for i in mixed], raw[mixed], *known(), 8, 300)
    more = cluster([*ids, "new-x"], np.concatenate([raw, draw("new", 1, 9)]), *known(), 8, 300)
    assert [max(kinds(c)) for c in more[:2]] == [max(kinds(c)) for c in found[:2]] == ["new", "newer"]
    for one, other in zip(found[:2], more[:2], strict=True):
        assert len(set(one.members) & set(other.members)) > 0.95 * len(one.members)


def test_the_medoid_of_thousands_is_found_without_all_their_distances_at_once():
    rows = np.random.default_rng(0).normal(size=(4000, 30)).astype(np.float32)
    tracemalloc.start()
    found = describe([str(i) for i in range(4000)], rows, np.arange(4000), None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 4000**2  # bytes of the distances alone
    nearest = np.argmin([np.linalg.norm(rows - row, axis=1).sum() for row in rows])
    assert found.members[0] == str(nearest)

"""What people split, merge and take back, and what the memory's process does to it: new items join."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from memory.clusters import clustering
from memory.clusters import edits as edits_module
from memory.clusters.clustering import KEPT_MS, renew
from memory.clusters.edits import EditError, merge, split, undo_edit
from memory.clusters.pages import page_of
from memory.clusters.review import label_cluster, list_clusters, members_of
from memory.clusters.views import ClusterChangedError, UnknownClusterError, edit_history
from memory.labels import LabelError, history, label, undo
from memory.records import IGNORE
from memory.rows import now_ms

DATABASES = ("sqlite_url", "postgresql_url")


@pytest.fixture
def listed(store, settings, fill, make):
    """The only cluster of twelve items."""
    fill([make(number) for number in range(12)])
    renew(store, settings)
    (cluster,) = list_clusters(store)
    return cluster.id


def shown(store):
    return {cluster.id: set(cluster.members) for cluster in list_clusters(store)}


def version(store, name):
    return page_of(store, name, "typical", 0, 1).version


def test_what_is_split_off_is_a_cluster_that_is_never_computed_anew(store, settings, fill, make, listed):
    everything = members_of(store, listed)
    chosen = {e.id for e in everything[:4]}
    done = split(store, listed, sorted(chosen), "ada", version(store, listed))
    rest = {e.id for e in everything} - chosen
    assert shown(store) == {done.cluster: chosen, listed: rest}
    assert list_clusters(store)[0].edit == done.edit
    for number in (20, 21):
        fill([make(number)])
        renew(store, settings)
    found = shown(store)
    assert found.pop(done.cluster) == chosen
    assert set[str]().union(*found.values()) == rest | {"media-0-20", "media-0-21"}


def test_undo_puts_split_items_back_where_they_were(store, settings, listed):
    before = shown(store)
    done = split(store, listed, [e.id for e in members_of(store, listed)[:4]], "ada")
    undone = undo_edit(store, done.edit, "bob")
    assert shown(store) == before
    renew(store, settings)
    assert shown(store) == before
    assert [(e.edit, e.what, e.undoes, e.undone_by, e.actor) for e in edit_history(store)] == [
        (undone.edit, None, done.edit, None, "bob"),
        (done.edit, "split", None, undone.edit, "ada"),
    ]
    with pytest.raises(EditError, match="is undone already, by bob"):
        undo_edit(store, done.edit, "ada")
    again = split(store, listed, [e.id for e in members_of(store, listed)[:4]], "ada")
    assert again.cluster == done.cluster


def test_clusters_become_one_and_several_again(store, settings, listed):
    first, second = (e.id for e in members_of(store, listed)[:2])
    apart = split(store, listed, [first, second], "ada")
    between = shown(store)
    done = merge(store, [(listed, version(store, listed)), (apart.cluster, None)], "bob")
    assert shown(store) == {done.cluster: set.union(*between.values())}
    assert done.taken_from == [listed, apart.cluster]
    renew(store, settings)
    assert list(shown(store)) == [done.cluster]
    with pytest.raises(EditError, match=f"edit {done.edit} came later on some of the same items"):
        undo_edit(store, apart.edit, "ada")
    undo_edit(store, done.edit, "bob")
    assert shown(store)[apart.cluster] == between[apart.cluster]
    renew(store, settings)
    assert set(map(frozenset, shown(store).values())) == set(map(frozenset, between.values()))


def test_a_part_of_what_was_split_off_can_be_split_off(store, listed):
    chosen = [e.id for e in members_of(store, listed)[:6]]
    outer = split(store, listed, chosen, "ada")
    inner = split(store, outer.cluster, chosen[:2], "ada")
    assert shown(store)[inner.cluster] == set(chosen[:2])
    assert shown(store)[outer.cluster] == set(chosen[2:])
    undo_edit(store, inner.edit, "ada")
    assert shown(store)[outer.cluster] == set(chosen)


def test_what_a_person_labelled_comes_back_into_the_persons_cluster(store, settings, listed):
    done = split(store, listed, [e.id for e in members_of(store, listed)[:4]], "ada")
    before = shown(store)[done.cluster]
    number, ids = label_cluster(store, done.cluster, "gan", "ada")
    renew(store, settings)
    assert set(ids) == before
    assert done.cluster not in shown(store)
    undo(store, number, "ada")
    renew(store, settings)
    assert shown(store)[done.cluster] == before


def test_the_second_of_two_people_hears_who_did_what(store, listed):
    seen = version(store, listed)
    first, *others = [e.id for e in members_of(store, listed)]
    number = label(store, [first], "gan", "ada")
    said = rf"ada called 1 of its items gan \(label {number}\) at 20\d\d-.* UTC"
    with pytest.raises(ClusterChangedError, match=said):
        label_cluster(store, listed, "vae", "bob", seen)
    with pytest.raises(ClusterChangedError, match=said):
        split(store, listed, others[:2], "bob", seen)
    with pytest.raises(ClusterChangedError, match=said):
        merge(store, [(listed, seen), (listed[::-1], None)], "bob")
    edit = split(store, listed, others[:2], "cleo", version(store, listed))
    with pytest.raises(ClusterChangedError, match=f"cleo put 2 of its items into cluster {edit.cluster}"):
        label_cluster(store, listed, "vae", "bob", seen)
    assert label_cluster(store, listed, "vae", "bob", version(store, listed))[1] == others[2:]
    with pytest.raises(LabelError, match=f"nothing of cluster {listed} waits any more: bob called"):
        label_cluster(store, listed, "vae", "ada")


def test_a_cluster_that_is_as_it_was_seen_is_no_conflict(store, listed):
    seen = version(store, listed)
    undo(store, label(store, [members_of(store, listed)[0].id], "gan", "ada"), "ada")
    assert len(label_cluster(store, listed, "vae", "bob", seen)[1]) == 12


@pytest.mark.parametrize("strange", ["", "12-", "x", "999", "12-0000000g"])
def test_a_version_that_never_was_is_a_conflict(store, listed, strange):
    with pytest.raises(ClusterChangedError, match="has changed since you looked"):
        label_cluster(store, listed, "gan", "ada", strange)


def test_a_label_says_how_many_of_the_cluster_were_looked_at(store, listed):
    ids = [e.id for e in members_of(store, listed)]
    label_cluster(store, listed, "gan", "ada", looked_at=[*ids[:5], ids[0], "elsewhere"])
    (entry,) = history(store)
    assert (entry.exemplars, entry.looked_at) == (12, 5)


def test_what_is_like_an_ignored_cluster_comes_as_one_of_its_own(store, settings, fill, make, listed):
    number, ignored = label_cluster(store, listed, IGNORE, "ada")
    renew(store, settings)
    assert shown(store) == {}
    new = [make(n, id=f"new-{n}", features=make(n).features + 0.1) for n in range(12)]
    fill(new, near=0)
    renew(store, settings)
    assert list(shown(store).values()) == [{item.id for item in new}]
    undo(store, number, "ada")
    renew(store, settings)
    assert set().union(*shown(store).values()) == {*ignored, *(item.id for item in new)}


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ([], "nothing of cluster .* is selected"),
        (["media-0-77", "media-0-78"], "media-0-77 and 1 more is not in cluster"),
        ([f"media-0-{number}" for number in range(12)], "that is all of cluster"),
    ],
)
def test_a_split_that_makes_no_two_clusters_is_refused(store, listed, chosen, why):
    before = shown(store)
    with pytest.raises(EditError, match=why):
        split(store, listed, chosen, "ada")
    assert (shown(store), edit_history(store)) == (before, [])


def test_what_cannot_be_merged_or_undone_is_refused(store, listed):
    with pytest.raises(EditError, match="two or more clusters"):
        merge(store, [(listed, None), (listed, None)], "ada")
    with pytest.raises(UnknownClusterError, match="no cluster bcd234"):
        merge(store, [(listed, None), ("bcd234", None)], "ada")
    with pytest.raises(EditError, match="no edit 1 to undo"):
        undo_edit(store, 1, "ada")


def kind(centre, number, make, **changes):
    features = np.random.default_rng(number).normal(size=24).astype(np.float32)
    features[:4] += centre
    return make(number, features=features, **changes)


def test_new_items_join_what_they_are_like_and_what_was_left_out_does_not(store, settings, fill, make):
    """Two families came together; a person splits one off. Later items of both arrive."""
    fill([kind(4, number, make) for number in range(30)])
    fill([kind(-4, number, make) for number in range(100, 130)])
    renew(store, settings.model_copy(update={"min_cluster_items": 40}))
    (whole,) = list_clusters(store)
    ids = [f"media-0-{number}" for number in range(30)]
    # Of the one family three are overlooked: they were there, so they stay where a person left them.
    done = split(store, whole.id, ids[:27], "ada")
    seen = version(store, done.cluster)
    renew(store, settings)
    later = datetime.now(UTC) + timedelta(hours=1)
    fill([kind(4, number, make, received_at=later) for number in range(30, 40)])
    fill([kind(-4, number, make, received_at=later) for number in range(130, 140)])
    renew(store, settings)
    made = shown(store)[done.cluster]
    came = {f"media-0-{number}" for number in range(30, 40)}
    assert made.issuperset(ids[:27])
    assert made.isdisjoint(ids[27:])
    assert made.isdisjoint(f"media-0-{number}" for number in range(100, 140))
    assert len(came & made) >= 8
    # A label in the version that was seen goes to what was seen.
    assert set(label_cluster(store, done.cluster, "gan", "ada", seen)[1]) == set(ids[:27])


def test_a_cluster_of_which_nothing_waits_goes_after_a_day(store, settings, listed, fill, make, monkeypatch):
    done = split(store, listed, [e.id for e in members_of(store, listed)[:4]], "ada")
    number, _ = label_cluster(store, done.cluster, "gan", "ada")
    began = now_ms()
    for day, waits in ((0.5, True), (2.0, False)):
        monkeypatch.setattr(clustering, "now_ms", lambda day=day: began + round(day * KEPT_MS))
        fill([make(40 + int(day))])
        renew(store, settings)
        with store.read() as connection:
            held = connection.exec_driver_sql("SELECT count(*) FROM clusters WHERE edit IS NOT NULL").scalar()
        assert bool(held) is waits
    with pytest.raises(EditError, match="nothing of its cluster has waited for a day"):
        undo_edit(store, done.edit, "ada")
    undo(store, number, "ada")
    renew(store, settings)
    assert sum(map(len, shown(store).values())) == 14


def test_of_two_who_merge_at_once_one_is_refused(store, listed, monkeypatch):
    apart = split(store, listed, [e.id for e in members_of(store, listed)[:4]], "ada")
    described = edits_module._rank_members

    def overtaken(*given):
        monkeypatch.undo()
        merge(store, [(listed, None), (apart.cluster, None)], "bob")
        return described(*given)

    monkeypatch.setattr(edits_module, "_rank_members", overtaken)
    with pytest.raises(EditError, match=r"nothing of cluster|changed meanwhile"):
        merge(store, [(listed, None), (apart.cluster, None)], "ada")
    assert [entry.actor for entry in edit_history(store)] == ["bob", "ada"]

import pytest

from memory import rows
from memory.acts import acts_after, as_fields
from memory.labels import LabelError, history, label, labelled_counts, undo
from memory.records import split_of
from memory.rows import UnknownExemplarError

IDS = [f"media-0-{i}" for i in range(30)]
DATABASES = ("sqlite_url", "postgresql_url")


@pytest.fixture(autouse=True)
def _filled(fill, make):
    fill([make(i, group=f"photo-{i // 3}") for i in range(30)])


def by_id(store):
    with store.read() as connection:
        return {e.id: e for e in rows.select_exemplars(connection)}


def test_a_label_sends_whole_groups_to_the_shelf_of_their_split(store):
    label(store, IDS, "gan-2", "ada")
    for exemplar in by_id(store).values():
        assert exemplar.family == "gan-2"
        assert exemplar.split == split_of(exemplar.group)
        assert exemplar.shelf == ("rehearsal" if exemplar.split == "train" else "held-back")
    assert {"rehearsal", "held-back"} == {e.shelf for e in by_id(store).values()}


def test_what_bears_a_label_is_counted_by_class_source_and_split_in_items_and_groups(store):
    label(store, IDS[:12], "real", "ada")
    label(store, IDS[12:15], "gan", "ada")
    label(store, IDS[15:18], "ignore", "ada")
    with store.read() as connection:
        counted = labelled_counts(connection)
    assert {of.family for of in counted} == {"real", "gan"}
    assert sum(of.items for of in counted) == 15
    for of in counted:
        mine = [e for e in by_id(store).values() if (e.family, e.split) == (of.family, of.split)]
        assert (of.items, of.groups) == (len(mine), len({e.group for e in mine}))


def test_what_is_ignored_is_of_no_class_and_never_learnt(store):
    label(store, IDS[:2], "ignore", "ada")
    assert {(e.shelf, e.family, e.split) for e in (by_id(store)[i] for i in IDS[:2])} == {
        ("ignored", None, None)
    }


def test_undo_brings_back_exactly_what_was_before(store):
    label(store, IDS[:10], "real", "ada")
    before = by_id(store)
    second = label(store, IDS[5:15], "gan", "bob")
    assert by_id(store) != before
    undo(store, second, "eve")
    assert by_id(store) == before


def test_the_history_says_who_did_what_and_who_undid_it(store):
    first = label(store, IDS[:3], "gan", "ada")
    undoing = undo(store, first, "bob")
    newest, oldest = history(store)
    said = (newest.label, newest.actor, newest.what, newest.undoes, newest.exemplars)
    assert said == (undoing, "bob", None, first, 3)
    said = (oldest.label, oldest.actor, oldest.what, oldest.undone_by, oldest.exemplars)
    assert said == (first, "ada", "gan", undoing, 3)


def test_an_undo_does_not_reach_below_a_later_label(store):
    first = label(store, IDS[:5], "gan", "ada")
    second = label(store, IDS[4:8], "real", "ada")
    with pytest.raises(LabelError, match=f"label {second} came later"):
        undo(store, first, "ada")
    undo(store, second, "ada")
    undo(store, first, "ada")
    assert {e.shelf for e in by_id(store).values()} == {"unknown"}


def test_nothing_is_undone_twice_and_an_undo_is_no_label(store):
    first = label(store, IDS[:1], "gan", "ada")
    undoing = undo(store, first, "ada")
    for number in (first, undoing, 999):
        with pytest.raises(LabelError):
            undo(store, number, "ada")


def test_one_wrong_id_and_nothing_is_labelled(store):
    with pytest.raises(UnknownExemplarError, match="there is no exemplar nobody"):
        label(store, [*IDS[:5], "nobody"], "gan", "ada")
    assert {e.shelf for e in by_id(store).values()} == {"unknown"}
    assert history(store) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["", "Gan", "gan_2", "gan--2", "2gan", "gan-", "a" * 65, "unknown", "fake", "../x", "gan\n"]
)
def test_a_bad_family_name_is_refused_with_a_clear_line(store, name):
    with pytest.raises(LabelError, match="family name"):
        label(store, IDS[:1], name, "ada")


def test_a_label_needs_a_name_and_something_to_label(store):
    with pytest.raises(LabelError, match="name of the person"):
        label(store, IDS[:1], "gan", "  ")
    with pytest.raises(LabelError, match="nothing to label"):
        label(store, [], "gan", "ada")


def test_an_id_that_is_named_twice_is_labelled_once(store):
    label(store, [IDS[0], IDS[0]], "gan", "ada")
    assert history(store)[0].exemplars == 1


def test_labels_and_their_undo_are_acts_that_name_exactly_the_exemplars(store):
    first = label(store, IDS[:3], "gan", "ada")
    undo(store, first, "bo")
    with pytest.raises(LabelError):
        label(store, IDS[:1], "no name", "ada")
    with store.read() as connection:
        labelled, undone = acts_after(connection, 0, 10)
    assert (labelled.actor, labelled.action, labelled.subject) == ("ada", "label", f"label {first}")
    assert (undone.actor, undone.action, undone.subject) == ("bo", "undo", f"label {first}")
    assert labelled.details == {"label": first, "what": "gan", **as_fields(IDS[:3])}
    assert undone.details["exemplars_digest"] == as_fields(reversed(IDS[:3]))["exemplars_digest"]
    assert as_fields(IDS[:3]) != as_fields(IDS[1:4])

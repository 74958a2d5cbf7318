"""Labels that contradict an earlier one are told in one line, and nothing is half done."""

from dataclasses import replace

import pytest

from memory import rows
from memory.contradictions import near_duplicates
from memory.labels import LabelError, history, label, undo

DATABASES = ("sqlite_url", "postgresql_url")


@pytest.fixture(autouse=True)
def _filled(fill, make):
    """Items 0 and 1 are the same bytes, 2 resembles 0, and 8 and 9 are in a folder's group."""
    items = [make(i) for i in range(8)]
    items[1] = replace(items[0], id="media-0-1")
    items[2] = replace(items[2], features=items[0].features + 1e-4)
    fill([*items, make(8, group="photo"), make(9, group="photo")])


def families(store):
    with store.read() as connection:
        return {e.id: e.family for e in rows.select_exemplars(connection)}


def near(store, ids, what):
    with store.read() as connection:
        return near_duplicates(connection, ids, what)


def test_the_same_bytes_are_not_called_two_classes_and_nothing_of_the_label_is_done(store):
    label(store, ["media-0-0"], "real", "ada")
    before = families(store), len(history(store))
    with pytest.raises(LabelError) as error:
        label(store, ["media-0-5", "media-0-1"], "gan", "bob")
    assert "media-0-1 (gan) and media-0-0 (real): nothing was labelled" in str(error.value)
    assert "\n" not in str(error.value)
    assert (families(store), len(history(store))) == before


def test_what_the_same_bytes_are_called_is_kept_or_they_are_all_relabelled(store):
    label(store, ["media-0-0"], "real", "ada")
    label(store, ["media-0-5", "media-0-1"], "gan", "bob", "keep")
    assert [families(store)[f"media-0-{i}"] for i in (0, 1, 5)] == ["real", "real", "gan"]
    label(store, ["media-0-1", "media-0-6"], "blend", "bob", "relabel")
    assert [families(store)[f"media-0-{i}"] for i in (0, 1, 5, 6)] == ["blend", "blend", "gan", "blend"]


def test_each_may_be_called_what_its_bytes_are_called_and_what_has_no_such_label_is_let_alone(store):
    label(store, ["media-0-0"], "real", "ada")
    label(store, ["media-0-5", "media-0-1"], None, "bob", "keep")
    assert [families(store)[f"media-0-{i}"] for i in (0, 1, 5)] == ["real", "real", None]
    with pytest.raises(LabelError, match="nothing to label"):
        label(store, ["media-0-5"], None, "bob", "keep")


def test_a_person_may_change_his_mind_about_all_of_the_same_bytes_together(store):
    label(store, ["media-0-0"], "real", "ada")
    label(store, ["media-0-1"], "real", "ada")
    label(store, ["media-0-0", "media-0-1"], "gan", "ada")
    assert {families(store)[f"media-0-{i}"] for i in (0, 1)} == {"gan"}


def test_what_is_ignored_or_no_longer_labelled_contradicts_nothing(store):
    first = label(store, ["media-0-0"], "real", "ada")
    label(store, ["media-0-1"], "ignore", "ada")
    undo(store, first, "ada")
    label(store, ["media-0-0"], "gan", "ada")
    assert families(store)["media-0-0"] == "gan"


def test_purged_media_holds_no_label_up(store):
    label(store, ["media-0-0"], "real", "ada")
    with store.write() as connection:
        rows.drop(connection, ["media-0-0"])
    label(store, ["media-0-1"], "gan", "ada")
    assert families(store)["media-0-1"] == "gan"


def test_near_duplicates_that_are_called_otherwise_are_told_in_one_line_and_keep_their_labels(store):
    label(store, ["media-0-2", "media-0-5"], "gan", "ada")
    label(store, ["media-0-0", "media-0-1"], "real", "bob")
    (line,) = near(store, ["media-0-0", "media-0-1"], "real")
    assert "media-0-0 (real) and media-0-2 (gan), and 1 more" in line
    assert "forgewatch label" in line
    assert "\n" not in line
    assert near(store, ["media-0-5"], "gan") == []
    assert near(store, ["media-0-0"], "ignore") == []


def test_a_photograph_and_its_forgery_in_one_folder_are_no_contradiction(store):
    label(store, ["media-0-8"], "real", "ada")
    label(store, ["media-0-9"], "gan", "ada")
    assert near(store, ["media-0-9"], "gan") == []

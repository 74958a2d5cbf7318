import pytest

from memory.acts import acts_after
from memory.annotations import Annotation, take
from memory.labels import LabelError, history, label, undo
from memory.rows import select_exemplars


def test_the_importer_labels_what_each_annotator_called_it_and_twice_is_once(store, fill, make):
    fill([make(i) for i in range(5)])
    said = [Annotation(f"media-0-{i}", "gan", "label-studio:ada") for i in range(2)]
    said += [Annotation("media-0-2", "real", "label-studio:bo"), Annotation("media-0-9", "gan", "x")]
    dry = take(store, said, "cy", dry=True)
    assert (dry.labelled, dry.labels, history(store)) == (3, [], [])
    done = take(store, said, "cy")
    assert (done.labelled, done.already) == (3, 0)
    assert done.left_out == ["media-0-9: there is no such exemplar"]
    assert {(entry.actor, entry.what, entry.exemplars) for entry in history(store)} == {
        ("cy", "gan", 2),
        ("cy", "real", 1),
    }
    with store.read() as connection:
        claims = [act.details.get("annotator_claimed") for act in acts_after(connection, 0, 10)]
    assert claims == ["label-studio:ada", "label-studio:bo"]
    again = take(store, said, "cy")
    assert (again.labelled, again.already, len(history(store))) == (0, 3, 2)


def test_what_a_person_here_called_otherwise_stays_and_is_told(store, fill, make):
    fill([make(i) for i in range(3)])
    label(store, ["media-0-0"], "real", "ada")
    label(store, ["media-0-1"], "ignore", "ada")
    done = take(store, [Annotation(f"media-0-{i}", "gan", "x") for i in range(3)], "cy")
    assert done.labelled == 1
    assert done.left_out == [
        "media-0-0: it is called real here, and gan there",
        "media-0-1: it is called ignore here, and gan there",
    ]
    undo(store, 1, "ada")
    assert take(store, [Annotation("media-0-0", "gan", "x")], "cy").labelled == 1


def test_where_one_cannot_be_labelled_none_is(store, fill, make):
    fill([make(0), make(1), make(2, media_digest=make(1).media_digest)])
    said = [Annotation("media-0-0", "gan", "x"), Annotation("media-0-1", "gan", "x")]
    with pytest.raises(LabelError):
        take(store, [*said, Annotation("media-0-2", "real", "x")], "cy")
    with store.read() as connection:
        assert len(select_exemplars(connection, shelf="unknown")) == 3
    assert history(store) == []

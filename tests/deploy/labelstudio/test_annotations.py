"""What Label Studio gives back is read as it was meant; what says nothing is listed, with why."""

import base64
import json
from contextlib import suppress
from xml.etree import ElementTree

import pytest
from exemplars import make_exemplar
from hypothesis import given
from hypothesis import strategies as st

from deploy.label_studio import NEW, NoExportError, configuration, read, task

PROJECT = "f" * 32
EXEMPLAR = make_exemplar(1, source='<b>"camera"</b>', release="a" * 64)
CONFIGURATION = configuration(["gan", "blend"])
TASK = task(EXEMPLAR, "c1", b"\x89PNG", PROJECT, "gan")


def annotation(choice, who=1, name=None, **more):
    result = [] if choice is None else [{"from_name": "class", "value": {"choices": [choice]}}]
    if name is not None:
        result.append({"from_name": "name", "value": {"text": [name]}})
    return {"completed_by": who, "result": result, "was_cancelled": False} | more


def exported(*annotations, exemplar="media-0-1", project=PROJECT):
    return {"id": 7, "data": {"exemplar": exemplar, "project": project}, "annotations": list(annotations)}


def said(*tasks):
    found = read(json.dumps(tasks).encode(), PROJECT)
    return [(a.exemplar, a.family, a.annotator) for a in found.annotations], found.left_out


@pytest.mark.parametrize("who", [3, "3", {"id": 3}, {"id": 9, "email": "3"}])
def test_an_annotator_is_named_by_address_or_number_and_never_as_one_of_the_house(who):
    assert said(exported(annotation("gan", who))) == ([("media-0-1", "gan", "label-studio:3")], [])


def test_a_new_family_has_the_name_that_was_written():
    assert said(exported(annotation(NEW, name=" deep-swap ")))[0] == [
        ("media-0-1", "deep-swap", "label-studio:1")
    ]


def test_who_agrees_counts_once_and_who_contradicts_labels_nothing():
    first = annotation("gan", "ada", created_at="2026-01-01")
    later = annotation("gan", "bo", created_at="2026-01-02")
    assert said(exported(later, first)) == ([("media-0-1", "gan", "label-studio:ada")], [])
    labels, left_out = said(exported(first), exported(annotation("real", "bo")))
    assert labels == []
    assert "ada says gan, label-studio:bo says real" in left_out[0]


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (exported(annotation("gan"), project="other"), "another project"),
        ({"id": 7, "data": {"image": "x"}, "annotations": [annotation("gan")]}, "another project"),
        (exported(annotation(None)), "another configuration"),
        (exported(annotation("Not A Name")), "is no family name"),
        (exported(annotation("unknown")), "means something else"),
        (exported(annotation("gan", None)), "names no annotator"),
        (exported(annotation("gan", "a\nb")), "names no annotator"),
        (exported(annotation(NEW)), "another configuration"),
    ],
)
def test_what_says_nothing_is_listed_with_its_reason(task, why):
    labels, (line,) = said(task)
    assert (labels, why in line, "task 7" in line) == ([], True, True)


def test_what_was_skipped_says_nothing():
    assert said(exported(annotation("gan", was_cancelled=True)), exported()) == ([], [])


@pytest.mark.parametrize("content", [b"", b"{}", b"<View/>", b"[1]", b'[{"annotations": 3}]', b"\xff"])
def test_what_is_no_export_is_one_line(content):
    with pytest.raises(NoExportError, match="no JSON export") as refused:
        read(content, PROJECT)
    assert "\n" not in str(refused.value)


def test_an_export_of_more_bytes_than_are_read_at_once_is_refused(monkeypatch):
    monkeypatch.setattr("deploy.label_studio.MAX_BYTES", 2)
    assert read(b"[]", PROJECT).annotations == []
    with pytest.raises(NoExportError, match="more than 2 bytes"):
        read(b"[ ]", PROJECT)


KEYS = "id data annotations result value choices from_name completed_by exemplar project"
NAMES = st.sampled_from(KEYS.split())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=3))
def test_whatever_the_file_holds_it_is_read_or_refused(tasks):
    with suppress(NoExportError):
        read(json.dumps(tasks).encode(), PROJECT)


def test_label_studios_own_sdk_takes_what_goes_out_and_makes_what_is_read():
    """An oracle that is not among the locked packages: it brings OpenCV and 70 others. Tried with 2.1.2."""
    sdk = pytest.importorskip("label_studio_sdk.label_interface", reason="label-studio-sdk is not installed")
    interface = sdk.LabelInterface(CONFIGURATION)
    interface.validate()
    assert interface.validate_task({"data": TASK["data"]})
    (prediction,) = TASK["predictions"]
    assert interface.validate_prediction(prediction, return_errors=True) == []
    wrong = {"result": [prediction["result"][0] | {"value": {"choices": ["nobody"]}}]}
    assert interface.validate_prediction(wrong, return_errors=True)
    sample = {"completed_by": 1, "result": prediction["result"]}
    assert interface.validate_annotation(sample)
    assert said({"id": 1, "data": TASK["data"], "annotations": [sample]})[0][0][1] == "gan"


# Tasks hold what a person needs to see, and say where they are from.
SHOWN_TASK = task(EXEMPLAR, "c1", b"\x89PNG", "f" * 32, "gan")


def test_the_configuration_offers_every_family_real_a_new_one_and_to_ignore():
    root = ElementTree.fromstring(CONFIGURATION)
    assert [choice.get("value") for choice in root.iter("Choice")] == [
        "real",
        "blend",
        "gan",
        "new family",
        "ignore",
    ]


def test_a_task_holds_its_picture_and_what_is_known_and_a_prediction_where_there_is_one():
    kind, _, content = SHOWN_TASK["data"]["image"].partition(",")
    assert (kind, base64.b64decode(content)) == ("data:image/png;base64", b"\x89PNG")
    assert (SHOWN_TASK["data"]["exemplar"], SHOWN_TASK["data"]["project"]) == ("media-0-1", "f" * 32)
    assert SHOWN_TASK["predictions"][0]["model_version"] == "a" * 12
    assert "predictions" not in task(EXEMPLAR, "c1", b"", "f", None)

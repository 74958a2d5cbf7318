"""From a label, a source or an exemplar on to the releases that it went into, and what those said."""

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from lineage_story import MEDIA, Story

from deploy.server.services import Services
from detector.release.artifact import Artifact
from memory.labels import undo


def learners(http: TestClient, path: str) -> list[tuple[str, dict[str, int], str | None, dict[str, int]]]:
    """What each release had of it, through which it has it else, and its verdicts."""
    found = http.get(f"/lineage/{path}")
    assert found.status_code == 200, found.text
    return [
        (one["release"]["digest"], one["items"], one["through"], one["verdicts"])
        for one in found.json()["releases"]
    ]


def test_a_label_leads_to_the_releases_that_learnt_it_and_to_those_that_go_back_to_them(
    http: TestClient, story: Story
) -> None:
    first, second = story.first.digest, story.second.digest
    assert learners(http, "labels/2") == [
        (first, {"train": 1, "calibration": 1}, None, {"real": 2}),
        (second, {}, first, {"real": 1}),
    ]
    assert learners(http, "labels/3") == [(second, {"train": 1}, None, {"real": 1})]
    assert http.get("/lineage/labels/2").json()["label"]["actor"] == "cem"


def test_what_was_undone_since_is_still_told(http: TestClient, story: Story, services: Services) -> None:
    undo(services.memory, 3, "cem")
    found = http.get("/lineage/labels/3").json()
    assert found["label"]["undone_by"] == 4
    assert [one["release"]["digest"] for one in found["releases"]] == [story.second.digest]
    assert http.get("/lineage/labels/4").status_code == 404  # an undo teaches nothing
    assert http.get("/lineage/labels/99").status_code == 404


def test_a_source_leads_to_its_labels_and_releases(http: TestClient, story: Story) -> None:
    found = http.get("/lineage/sources", params={"source": "web"}).json()
    assert sum(found["exemplars"].values()) == 3
    assert [entry["label"] for entry in found["labels"]] == [3, 2]
    assert learners(http, "sources?source=trip") == [
        (story.first.digest, {"train": 1, "test": 1}, None, {"real": 2}),
        (story.second.digest, {"train": 1, "test": 1}, None, {"real": 1}),
    ]
    assert http.get("/lineage/sources", params={"source": "sea"}).status_code == 404


def test_an_exemplar_leads_to_the_releases_whose_snapshot_has_it(http: TestClient, story: Story) -> None:
    first, second = story.first.digest, story.second.digest
    assert [one[:3] for one in learners(http, f"exemplars/{MEDIA}-0-3")] == [
        (first, {"train": 1}, None),
        (second, {}, first),
    ]
    # Held back, it taught nothing.
    assert [one[:3] for one in learners(http, f"exemplars/{MEDIA}-0-4")] == [
        (first, {"calibration": 1}, None)
    ]
    assert [one[:3] for one in learners(http, f"exemplars/{MEDIA}-0-5")] == [(second, {"train": 1}, None)]
    assert http.get(f"/lineage/exemplars/{MEDIA}-0-6").status_code == 404


def test_releases_from_before_there_were_snapshots_are_named(
    http: TestClient,
    make_artifact: Callable[..., Artifact],
    propose: Callable[[Artifact], None],
    story: Story,
) -> None:
    old = make_artifact(story.second, ("inpainted",))
    propose(old)
    found = http.get("/lineage/labels/3").json()
    assert found["unsaid"] == [old.digest]
    assert [(one["release"]["digest"], one["through"]) for one in found["releases"]] == [
        (story.second.digest, None),
        (old.digest, story.second.digest),
    ]


def test_figures_of_every_release_are_given_in_their_order(http: TestClient, story: Story) -> None:
    found = http.get("/figures").json()
    assert [one["release"]["digest"] for one in found] == [story.first.digest, story.second.digest]
    assert "af" not in found[0]["figures"]
    assert found[1]["figures"]["af"] == pytest.approx(0)
    assert found[0]["figures"]["aa"] == pytest.approx((0.98 + 0.9) / 2)

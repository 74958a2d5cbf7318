"""A source leaves the memory by the API, the command line and the page; what was made of it goes nowhere."""

import pytest

from deploy.server import purge
from detector.release.artifact import MANIFEST
from memory.labels import label
from updater.evaluation_parts import SnapshotRow

SOURCE = "<b>camera</b>"


@pytest.fixture
def labelled(services, fill):
    """Exemplars of one source that people labelled, and a cluster of others that wait."""
    ids = fill("a", 3, source=SOURCE)
    label(services.memory, ids, "gan", "ada")
    fill("bb", 4, source=SOURCE, place=1)
    fill("ccc", 5, source="calm", place=2)
    return ids


@pytest.mark.usefixtures("labelled")
def test_a_preview_says_what_goes_and_a_purge_takes_it_a_request_at_a_time(http, services, monkeypatch):
    monkeypatch.setattr(purge, "_ROWS_A_REQUEST", 4)
    run, _ = services.runs.request("now", "manual", "ada")
    lease = services.runs.claim("runner")
    assert lease is not None
    found = http.get("/memory/purge", params={"source": SOURCE}).json()
    assert (found["clusters"], found["updates"], found["blocked"]) == (1, [run.id], False)
    assert sum(found["exemplars"].values()) == 7
    wanted = {"source": SOURCE, "block": True, "version": found["version"]}
    first = http.post("/memory/purge", json=wanted).json()
    assert (first["purged"], first["left"], first["stopped"]) == (4, 3, [run.id])
    assert services.runs.get(run.id).state == "refused"
    assert SOURCE in (services.runs.get(run.id).error or "")
    assert http.post("/memory/purge", json={"source": SOURCE}).json()["left"] == 0
    assert http.get("/memory/blocked").json()[0]["source"] == SOURCE
    acts = [(act["action"], act["subject"]) for act in http.get("/record").json()]
    assert ("purge source", SOURCE) in acts
    assert ("block source", SOURCE) in acts


def test_what_has_changed_since_it_was_shown_is_looked_at_again(http, services, labelled):
    version = http.get("/memory/purge", params={"source": SOURCE}).json()["version"]
    label(services.memory, ["forgewatch.media-1-0"], "gan", "bo")
    refused = http.post("/memory/purge", json={"source": SOURCE, "version": version})
    assert (refused.status_code, "preview again" in refused.text) == (409, True)
    assert len(http.get("/record").json()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("purges", [True, False])
def test_a_release_that_was_made_of_what_was_purged_is_not_proposed_approved_or_taken_live(
    http, services, labelled, make_artifact, candidate_of, purges
):
    """With the control: without a purge it goes its way."""
    rows = [
        SnapshotRow(
            exemplar=name, media_digest="0", family="gan", split="train", group="g", source=SOURCE, label=1
        )
        for name in labelled
    ]
    artifacts = [make_artifact(rows=rows), make_artifact(rows=rows, named=0.95)]
    bodies = []
    for artifact in artifacts:
        for name in (*artifact.manifest.files, MANIFEST):
            http.put(f"/artifacts/{artifact.digest}/{name}", content=(artifact.folder / name).read_bytes())
        bodies.append(candidate_of(artifact).model_dump(mode="json"))
    assert http.post("/releases", json=bodies[0]).status_code == 201
    path, wanted = f"/releases/{artifacts[0].digest}", {"evaluation_digest": bodies[0]["evaluation_digest"]}
    assert http.post(f"{path}/approve", json={**wanted, "promote": False}).json()["state"] == "approved"
    if purges:
        version = http.get("/memory/purge", params={"source": SOURCE}).json()["version"]
        http.post("/memory/purge", json={"source": SOURCE, "version": version})
    proposed = http.post("/releases", json=bodies[1])
    approved = http.post(f"{path}/approve", json={**wanted, "promote": False})
    promoted = http.post(f"{path}/promote")
    for answer, status in ((proposed, 201), (approved, 200), (promoted, 200)):
        assert answer.status_code == (409 if purges else status)
        assert ("made of 3 items that were purged" in answer.text) == purges


@pytest.mark.usefixtures("labelled")
def test_the_page_shows_what_goes_and_purges_it(page, services):
    shown = page.get("/page/source", params={"name": SOURCE})
    assert "/page/source/purge?name=%3Cb%3Ecamera%3C%2Fb%3E" in shown.text
    looked = page.get("/page/source/purge", params={"name": SOURCE})
    assert "&lt;b&gt;camera" in looked.text
    version = looked.text.partition('name="version" value="')[2][:64]
    done = page.submit(f"/page/source/purge?name={SOURCE}", name=SOURCE, version=version, block="true")
    assert "7 items were purged." in done.text
    assert "It is blocked" not in done.text  # nothing is left to do
    assert page.get("/page/clusters").text.count("ccc") > 0
    stale = page.submit("/page/source/purge?name=calm", name="calm", version="0" * 64)
    assert (stale.status_code, "preview again" in stale.text) == (409, True)

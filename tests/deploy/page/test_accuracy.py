"""Accuracy and the audit, as the page, the API and the gauges have them."""

import time

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from verdicts import make_item, make_verdict

from deploy.release_records import Approve
from deploy.releases.metrics import AccuracyGauges
from deploy.releases.standing import replay
from deploy.server import releases
from deploy.server.pictures import NoPictureError, SharedMedia
from ingest.records import InRecord, Metadata, Provenance
from memory.acts import acts_after
from memory.estimate.sums import note_estimates
from memory.verdict_index import note_verdicts

SOURCE = "<b>camera</b>"


@pytest.fixture
def live(services, proposed):
    """The digest of a live release of which ten verdicts said real and ten blend; all were drawn."""
    artifact = proposed()
    candidate = replay(services.ledger.events()).releases[artifact.digest].candidate
    wanted = Approve(evaluation_digest=candidate.evaluation_digest, accept={}, plan="now")
    releases.approve(services, "bea", artifact.digest, wanted)
    found = []
    for n in range(20):
        what = {"label": "real", "fake_probability": 0.1}
        if n % 2:
            what = {"label": "fake", "family": "blend", "family_probability": 0.8, "fake_probability": 0.9}
        verdict = make_verdict(make_item(n, source=SOURCE), release=artifact.digest, **what)
        found.append((InRecord("verdicts", 0, n, time.time_ns() // 10**6, None, b"", ()), verdict))
    with services.memory.write_unversioned() as connection:
        note_estimates(connection, found, 10_000)
    return artifact.digest


def test_an_audit_tells_what_was_said_only_once_the_item_is_labelled(page, services, live):
    before = page.get("/page/audit").text
    assert "media-0-0" in before
    assert "&lt;b&gt;camera" in before
    assert "<th>Verdict</th>" not in before
    assert not {"called", "probability", "release"} & set(page.get("/audits").json()[0])
    done = page.submit("/page/audit", ids=["media-0-0", "media-0-1"], called="real")
    assert done.status_code == 200
    assert "<th>Verdict</th>" in done.text
    assert done.text.count(">wrong<") == 1  # of these one was called blend
    assert 'id="tile-1" name="ids" value="media-0-0"' not in done.text
    with services.memory.read() as connection:
        assert {(act.action, act.subject) for act in acts_after(connection, 0, 9)} >= {("audit", "media-0-0")}
    again = page.submit("/page/audit", ids=["media-0-0"], called="real")
    assert (again.status_code, "already" in again.text) == (409, True)
    assert 'name="ids" value="media-0-1"' in done.text  # to be labelled again
    changed = page.submit("/page/audit", ids=["media-0-1"], called="blend")
    assert (changed.status_code, changed.text.count(">wrong<")) == (200, 0)
    assert page.submit("/page/audit", called="real").status_code == 422


def test_accuracy_is_not_known_until_twenty_drawn_items_are_labelled(page, services, live):
    registry = CollectorRegistry()
    registry.register(AccuracyGauges(services.ledger.events, services.memory))

    def gauge(name, **labels):
        return registry.get_sample_value(f"forgewatch_deploy_{name}", labels)

    nothing = page.get("/accuracy").json()["accuracy"]["over_all"]
    assert (nothing["corrected"], nothing["lacking"]) == (None, 20)
    assert page.get("/page/accuracy").text.count("not known: label 20 drawn items to find out") == 4
    assert gauge("accuracy", **{"class": "", "bound": "value"}) is None
    assert gauge("audits_waiting") == 20
    for item in page.get("/audits").json():
        page.post("/audits", json={"id": item["id"], "label": "real"}, headers={"X-Forgewatch-Actor": "ann"})
    told = page.get("/accuracy", params={"days": 2}).json()["accuracy"]
    assert told["over_all"]["corrected"]["value"] == pytest.approx(0.5)
    assert told["classes"]["blend"]["lacking"] == 10
    shown = page.get("/page/accuracy?days=2").text
    assert "50.0" in shown
    assert shown.count("not known: label 10 drawn items to find out") == 2
    assert gauge("accuracy", **{"class": "", "bound": "value"}) == pytest.approx(0.5)
    assert gauge("accuracy", **{"class": "blend", "bound": "value"}) is None


def test_declared_media_audits_the_pixels_and_is_in_no_other_figure(page, services, live):
    assert page.get("/accuracy").json()["declared"] is None
    file = Provenance(metadata=Metadata(declares="generated"))
    of_file = {"provenance": file, "release": live, "label": "fake", "family": "declared:generated"}
    pixels = ["real"] * 5 + ["unknown"] * 7 + [None] * 8
    found = [
        (
            InRecord("verdicts", 0, n, time.time_ns() // 10**6, None, b"", ()),
            make_verdict(make_item(n), **of_file, pixel_label=of_pixels),
        )
        for n, of_pixels in enumerate(pixels, 100)
    ]
    with services.memory.write_unversioned() as connection:
        note_verdicts(connection, found)
        note_estimates(connection, found, 0)
    report = page.get("/accuracy").json()
    assert (report["declared"]["items"], report["declared"]["caught"]) == (20, 15)
    assert report["accuracy"]["over_all"]["items"] == 20
    shown = page.get("/page/accuracy").text
    assert "15 of 20, 75.0 % (54.4 to 89.6), 95 % confidence in either end. It is no random sample" in shown


def test_a_drawn_item_is_shown_by_its_position_and_another_is_refused(page, live, monkeypatch):
    picture = np.zeros((8, 8, 3), np.uint8)
    monkeypatch.setattr(SharedMedia, "picture", lambda *_: picture)
    assert page.get("/page/audit/picture.png?id=media-0-0").content[:4] == b"\x89PNG"
    assert page.get("/page/audit/picture.png?id=media-0-99").status_code == 404

    def gone(*_):
        raise NoPictureError("its topic no longer has it")

    monkeypatch.setattr(SharedMedia, "picture", gone)
    assert page.get("/page/audit/picture.png?id=media-0-1").content[:4] == b"\x89PNG"


def test_before_a_release_is_live_there_is_no_estimate(page):
    assert page.get("/accuracy").status_code == 404
    assert "No release is live yet" in page.get("/page/accuracy").text

"""Accuracy and the audit, as the page, the API and the gauges have them."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from verdicts import make_item, make_verdict

from deploy.release_records import Approve
from deploy.releases.accuracy_gauges import AccuracyGauges
from deploy.releases.standing import fold
from deploy.server import releases
from deploy.server.services import Services
from deploy.server.shared_media import NoPictureError, SharedMedia
from detector.release.artifact import Artifact
from ingest.records import InRecord
from memory.acts import acts_after
from memory.estimate.sums import note_estimates
from memory.records import Raised
from memory.shift.alarms import put_raised

SOURCE = "<b>camera</b>"


@pytest.fixture
def live(services: Services, proposed: Callable[..., Artifact]) -> str:
    """The digest of a live release of which ten verdicts said real and ten blend; all were drawn."""
    artifact = proposed()
    candidate = fold(services.ledger.events()).releases[artifact.digest].candidate
    wanted = Approve(evaluation_digest=candidate.evaluation_digest, accept={}, plan="now")
    releases.approve(services, "bea", artifact.digest, wanted)
    found = []
    for n in range(20):
        what: dict[str, Any] = {"label": "real", "fake_probability": 0.1}
        if n % 2:
            what = {"label": "fake", "family": "blend", "family_probability": 0.8, "fake_probability": 0.9}
        verdict = make_verdict(make_item(n, source=SOURCE), release=artifact.digest, **what)
        found.append((InRecord("verdicts", 0, n, time.time_ns() // 10**6, None, b"", ()), verdict))
    with services.memory.note() as connection:
        note_estimates(connection, found, 10_000)
    return artifact.digest


def test_an_audit_tells_what_was_said_only_once_the_item_is_labelled(
    page: Any, services: Services, live: str
) -> None:
    before = page.get("/page/audit").text
    assert "media-0-0" in before
    assert "&lt;b&gt;camera" in before
    assert "The release said" not in before
    assert not {"called", "probability", "release"} & set(page.get("/audits").json()[0])
    done = page.submit("/page/audit", ids=["media-0-0", "media-0-1"], called="real")
    assert done.status_code == 200
    assert "The release said" in done.text
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


def test_once_all_that_was_drawn_is_labelled_the_audit_corrects_the_estimate(page: Any, live: str) -> None:
    nothing = page.get("/accuracy").json()["accuracy"]["over_all"]
    assert nothing["corrected"] is None
    for item in page.get("/audits").json():
        page.post("/audits", json={"id": item["id"], "label": "real"}, headers={"X-Forgewatch-Actor": "ann"})
    told = page.get("/accuracy", params={"days": 2}).json()["accuracy"]
    assert told["over_all"]["corrected"]["value"] == pytest.approx(0.5)
    assert told["classes"]["blend"]["corrected"]["value"] == 0
    shown = page.get("/page/accuracy?days=2").text
    assert "blend" in shown
    assert "50.0" in shown


def test_where_an_alarm_stands_the_view_the_api_and_the_gauge_say_that_probabilities_do_not_hold(
    page: Any, services: Services, live: str
) -> None:
    registry = CollectorRegistry()
    registry.register(AccuracyGauges(services.ledger.events, services.memory))

    def gauge(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"forgewatch_deploy_{name}", labels)

    assert "does not hold" not in page.get("/page/accuracy").text
    assert gauge("accuracy_probabilities_hold") == 1
    assert gauge("accuracy", **{"class": "blend", "by": "probabilities", "bound": "value"}) == pytest.approx(
        0.8
    )
    assert gauge("audits_waiting") == 20
    at = datetime(2026, 1, 1, tzinfo=UTC)
    raised = Raised(at=at, source=SOURCE, release=live, items=100, since=60, log_e=9.0, log_limit=8.0)
    with services.memory.write() as connection:
        put_raised(connection, raised, (), ())
    assert "does not hold" in page.get("/page/accuracy").text
    assert gauge("accuracy_probabilities_hold") == 0
    over_all = page.get("/accuracy").json()["accuracy"]["over_all"]
    assert datetime.fromisoformat(over_all["broken_since"]) == at


def test_a_drawn_item_is_shown_by_its_position_and_another_is_refused(
    page: Any, live: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = np.zeros((8, 8, 3), np.uint8)
    monkeypatch.setattr(SharedMedia, "picture", lambda *_: picture)
    assert page.get("/page/audit/picture.png?id=media-0-0").content[:4] == b"\x89PNG"
    assert page.get("/page/audit/picture.png?id=media-0-99").status_code == 404

    def gone(*_: object) -> Any:
        raise NoPictureError("its topic no longer has it")

    monkeypatch.setattr(SharedMedia, "picture", gone)
    assert page.get("/page/audit/picture.png?id=media-0-1").content[:4] == b"\x89PNG"


def test_before_a_release_is_live_there_is_no_estimate(page: Any) -> None:
    assert page.get("/accuracy").status_code == 404
    assert "No release is live yet" in page.get("/page/accuracy").text

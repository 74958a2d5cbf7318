"""Now and Sources: what is going on, told at once whatever is away."""

import html
import re
import threading
import time
from collections import deque
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from sqlalchemy import insert
from streams import await_that
from verdicts import make_item, make_verdict

from deploy.access.roles import Person, TokenRequest
from deploy.access.sessions import COOKIE
from deploy.page.login import _MOST
from deploy.release_records import Approve
from deploy.releases.standing import replay
from deploy.server import purge, releases
from deploy.server.surroundings import ContextCache, ServerContext, ask
from detector.release.artifact import MANIFEST
from ingest.records import InRecord
from memory.labels import label
from memory.records import Drift, Raised
from memory.schema import drift_alarms
from memory.shift.alarms import put_raised
from memory.sources import list_sources
from memory.verdict_index import note_verdicts
from updater.evaluation_parts import SnapshotRow

HOSTILE = "<script>alert(1)</script>\u202e\x07camera"


@pytest.fixture
def note(services):
    """Notes verdicts as the thread does that watches them."""

    def put(*labels, source="camera-7", at=0):
        topic = services.ingest.media_topic
        noted = []
        for number, said in enumerate(labels, at):
            verdict = make_verdict(
                make_item(number, topic=topic, source=source), label=said, release="a" * 64
            )
            noted.append((InRecord("verdicts", 0, number, 1000 + number, None, b"", ()), verdict))
        with services.memory.write_unversioned() as connection:
            note_verdicts(connection, noted)

    return put


def test_the_newest_verdicts_are_shown_newest_first_each_with_a_link(page, note):
    note("real", "unknown", *["fake"] * 20)
    text = page.get("/").text
    assert text.index("-0-21<") < text.index("-0-20<")
    assert "-0-1<" not in text
    assert 'href="/page/verdicts/forgewatch.media-0-21"' in text


def test_a_broker_that_is_away_holds_no_view_and_says_so_soon(page):
    first = page.get("/").text
    # On a slow machine its answer is there by then.
    assert first.count("<bdi>loading") == 2 or "no broker answers" in first
    await_that(lambda: "no broker answers" in page.get("/").text, 20)


def test_charts_over_time_are_drawn_of_shares_of_verdicts_unknowns_and_lag(page, services, settings):
    assert 'id="charts"' not in page.get("/").text
    now_ms, found = time.time_ns() // 10**6, []
    for number, said in enumerate(["real"] * 6 + ["unknown"] * 3 + ["fake"]):
        verdict = make_verdict(make_item(number, topic=services.ingest.media_topic), label=said)
        ago_ms = 60_000 * (10 - number) if number else 5 * 3_600_000
        found.append((InRecord("verdicts", 0, number, now_ms - ago_ms, None, b"", ()), verdict))
    with services.memory.write_unversioned() as connection:
        note_verdicts(connection, found)
    around = ask(settings, services, deque([(0.0, 9e9), (time.time() - 60, 120.0), (time.time(), 0.0)]))
    assert sum(sum(part.values()) for part in around.counts) == 10
    assert 5.9 * 3600 < around.until_s - around.since_s < 6.1 * 3600  # the shortest span that has them all
    page.app.state.surroundings = SimpleNamespace(last=lambda: around)
    text = page.get("/").text
    assert "real 60 %, unknown 30 %, fake 10 % of 10 verdicts" in text
    assert "3 items became unknown" in text
    assert "now 0 s, at most 2 min" in text  # what lies before the span is left out
    chart = text.partition('id="charts"')[2].partition("Verdicts as they come")[0]
    assert (chart.count("<svg"), "style=" in chart, "<script" in chart) == (3, False, False)
    heights = [float(high) for high in re.findall(r'class="f-ok".*?height="([\d.]+)"', chart)]
    assert max(heights) == 96


def test_who_is_asked_slowly_is_asked_once_at_a_time_and_a_fault_of_theirs_does_not_last():
    asked, let_go = [], threading.Event()

    def ask():
        asked.append(1)
        let_go.wait(20)
        if len(asked) == 1:
            raise ValueError("no")
        return ServerContext(lag_problem=None)

    watch = ContextCache(ask, kept_s=0)
    assert [watch.last().lag_problem for _ in range(5)] == ["loading"] * 5
    assert len(asked) == 1
    let_go.set()
    await_that(lambda: watch.last().lag_problem is None, 20)


def test_a_source_has_its_verdicts_exemplars_and_alarms_and_its_name_does_nothing(page, services, note, fill):
    note("real", "real", "unknown", "fake", source=HOSTILE)
    fill("c1", 3, source=HOSTILE)
    fill("c2", 5, source="calm", place=1)
    raised = Raised(
        at=datetime(2026, 1, 1, tzinfo=UTC),
        source=HOSTILE,
        release="a" * 64,
        items=9,
        since=3,
        log_e=5,
        log_limit=4,
    )
    with services.memory.write() as connection:
        put_raised(connection, raised, (), ())
    with services.memory.read() as connection:
        shifted, calm = list_sources(connection)
    assert (shifted.name, shifted.shelves, shifted.verdicts, len(shifted.alarms)) == (
        HOSTILE,
        {"unknown": 3},
        {"real": 2, "unknown": 1, "fake": 1},
        1,
    )
    assert (calm.name, calm.items) == ("calm", 0)
    for path in ("/page/sources", "/", "/page/clusters"):
        text = page.get(path).text
        assert "<script>alert" not in text
        assert "\u202e" not in text
    shown = page.get("/page/source", params={"name": HOSTILE})
    assert "&lt;script&gt;" in shown.text
    assert "unknown</dt><dd>3" in shown.text


def test_a_source_of_which_nothing_is_kept_says_so(page):
    assert "stores none of its items" in page.get("/page/source", params={"name": "nobody"}).text


def test_dead_letters_that_cannot_be_read_say_why_and_a_mistyped_place_is_one_line(page):
    assert "no broker answers" in page.get("/page/dead-letters").text
    refused = page.get("/page/dead-letters", params={"before": "0:1,x"})
    assert (refused.status_code, "before:" in refused.text) == (422, True)


def test_sources_whose_long_names_begin_alike_are_counted_apart(services, fill):
    names = ["猫" * 200 + "a", "猫" * 200 + "b", "猫" * 200, "猫" * 199]
    for place, name in enumerate(names):
        fill("c" * (place + 1), place + 1, source=name, place=place)
    with services.memory.read() as connection:
        found = {source.name: source.shelves for source in list_sources(connection)}
    assert found == {name: {"unknown": place + 1} for place, name in enumerate(names)}


def test_an_update_whose_release_is_live_is_not_called_proposed(page, services, proposed):
    artifact, (run, _) = proposed(), services.runs.request("now", "manual", "ann")
    lease = services.runs.claim("runner")
    assert lease is not None
    services.runs.finish(lease, "proposed", candidate=artifact.digest)
    for state in ("proposed", "live"):
        for shown in (page.get("/page/updates").text, page.get(f"/page/updates/{run.id}").text):
            assert re.findall(r'class="tag [a-z]*">(\w+)<', shown)[0] == state
        evidence = replay(services.ledger.events()).releases[artifact.digest].candidate.evaluation_digest
        wanted = Approve(evaluation_digest=evidence, accept={}, plan="now")
        if state == "proposed":
            releases.approve(services, "bea", artifact.digest, wanted)


# The page of sources: what each sends, and what has drifted.
def test_the_newest_drifts_are_told_with_their_source_statistic_and_direction(http, services):
    usual = {"at": datetime.now(UTC), "release": "a" * 64, "items": 300, "log_e": 9.0, "log_limit": 7.0}
    assert "<h2>Drift</h2>" not in http.get("/page/sources").text
    found = [
        Drift(source="<b>door</b>", statistic="energy", direction="lower", since=41, **usual),
        Drift(source=None, statistic="embedding_novelty", direction="higher", since=52, **usual),
    ]
    with services.memory.write_unversioned() as connection:
        for drift in found:
            connection.execute(insert(drift_alarms).values(found=drift.model_dump_json(), announced=False))
    shown = http.get("/page/sources").text
    _, over_all, of_source = shown.split("<h2>Drift</h2>")[1].split("<tr><th>", 3)[-3:]
    assert 'all sources</th><td data-label="statistic">embedding novelty</td>' in over_all
    assert "&lt;b&gt;door&lt;/b&gt;" in of_source
    assert '>energy</td><td data-label="change">lower</td>' in of_source


# A source leaves the memory by the API, the command line and the page; what was made of it goes nowhere.
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


# A session that ends while somebody types costs no text, and does nothing by itself.
OWNER = Person("root", frozenset({"admin"}), "token")
TYPED = {"do": "reject", "reason": "two words\n</textarea><script>alert(1)</script>", "form_token": "0" * 64}


@pytest.fixture
def token(services):
    """An admin's token: from now on nobody gets in without one."""
    return services.access.tokens.add(TokenRequest(name="ada", role="admin", days=1), OWNER).token


def path_after_login(text):
    """Where the login form leads."""
    found = re.search('name="next" value="([^"]*)"', text)
    assert found is not None
    return html.unescape(found[1])


def sign_in(page, token, next_):
    answer = page.post("/login", data={"token": token, "next": next_}, follow_redirects=False)
    # The test's client drops a cookie that asks for TLS on http.
    session = re.search(f"{COOKIE}=([^;]+)", answer.headers["set-cookie"])
    assert session is not None
    return page.get(answer.headers["location"], headers={"cookie": f"{COOKIE}={session[1]}"})


def test_what_was_typed_is_shown_after_the_login_and_nothing_was_done(page, services, token):
    asked = page.post("/page/updates", data=TYPED, headers={"cookie": f"{COOKIE}=gone"})
    assert asked.status_code == 401
    assert "two words" not in asked.text
    mistyped = page.post("/login", data={"token": "fw_wrong", "next": path_after_login(asked.text)})
    shown = sign_in(page, token, path_after_login(mistyped.text))
    assert shown.status_code == 200
    assert "two words\n&lt;/textarea&gt;&lt;script&gt;" in shown.text
    assert 'action="/page/updates"' in shown.text
    assert 'name="do" value="reject"' in shown.text
    assert "0" * 64 not in shown.text
    assert services.runs.newest(5) == []


def test_what_was_typed_is_shown_to_nobody_without_a_session_nor_under_another_name(page, token):
    asked = page.post("/page/updates", data=TYPED)
    place = path_after_login(asked.text)
    assert place.startswith("/page/kept/")
    assert page.get(place).status_code == 401
    assert sign_in(page, token, place + "x").status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        {"data": {"reason": "x " * 40_000}},
        {"data": TYPED, "headers": {"origin": "http://evil.example"}},
        {"json": TYPED},
        {"files": {"file": b"x"}},
    ],
)
def test_what_is_large_of_another_page_or_no_form_is_not_kept(page, token, sent):
    asked = page.post("/page/updates", **sent)
    assert asked.status_code == 401
    assert path_after_login(asked.text) == "/page/updates"


def test_only_so_many_are_kept(page, token):
    places = [path_after_login(page.post("/page/updates", data=TYPED).text) for _ in range(_MOST + 1)]
    assert sign_in(page, token, places[-1]).status_code == 200
    assert sign_in(page, token, places[0]).status_code == 404

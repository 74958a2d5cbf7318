"""Now and Sources: what is going on, told at once whatever is away."""

import re
import threading
import time
from collections import deque
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from streams import await_that
from verdicts import make_item, make_verdict

from deploy.dead_letters import DeadLetter, LetterPage
from deploy.release_records import Approve
from deploy.releases.standing import replay
from deploy.server import releases
from deploy.server.surroundings import ContextCache, ServerContext, ask
from ingest.records import InRecord
from memory.records import Raised
from memory.shift.alarms import put_raised
from memory.sources import list_sources
from memory.verdict_index import note_verdicts

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


def test_a_dead_letter_shows_the_claim_of_its_file(page, monkeypatch):
    message = "x" * 200 + ". The file says that it was made by a generative model in <b>M</b>"
    letter = DeadLetter(0, 1, 0, {"message": message}, None, None, None, None)
    monkeypatch.setattr("deploy.page.dead_letters.read_page", lambda *_: LetterPage((letter,), None))
    assert "made by a generative model in &lt;b&gt;M&lt;/b&gt;" in page.get("/page/dead-letters").text


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

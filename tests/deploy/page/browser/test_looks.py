"""Every view at two widths, light and dark, full of what hostile people and producers wrote."""

import html
import os
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

pytest.importorskip("playwright", reason="playwright is not installed")

from playwright.sync_api import expect
from verdicts import make_item, make_verdict

from deploy.access.roles import Person, TokenRequest
from deploy.dead_letters import DeadLetter
from deploy.dead_letters import LetterPage as Letters
from deploy.lineage import back
from deploy.page import dead_letters, login
from deploy.page.render import _environment
from deploy.records import AuditLabel
from deploy.release_records import Approve
from deploy.releases.publish import make_moves
from deploy.releases.standing import replay
from deploy.rollout_records import Waive
from deploy.rollouts import moves
from deploy.rollouts.checks import REALS_LOST
from deploy.server import accuracy, pictures, releases
from deploy.server.pictures import SharedMedia
from deploy.server.trying import TrialScorer, Tried
from detector.records import Neighbour
from ingest.records import InRecord
from memory.estimate.audits import CANNOT_SAY
from memory.estimate.sums import note_estimates
from memory.labels import label
from memory.records import Declared, Raised
from memory.shift.alarms import put_raised
from memory.verdict_index import note_verdicts
from updater.candidate.gates import make_gates
from updater.evaluation_parts import Flip, Flips, RocPoint, SnapshotRow
from updater.records import Robustness
from updater.settings import UpdaterSettings

pytestmark = pytest.mark.slow

AXE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "forgewatch" / "axe" / "axe.min.js"
"""Where `tests/deploy/page/browser/tools.sh` puts it."""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
WIDTHS = {1280: 900, 390: 844}
"""each with its height, in px of CSS"""
EVIL = (
    "\u202e\x07<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u0634\u0628\u0643\u0629 " + "w" * 90
)
"""An override of direction, a bell, markup, letters that run from right to left, no place to break a line."""
FAMILY = EVIL[2:62]
SPLITS = ("train", "calibration", "test")


@pytest.fixture
def make_evaluation(make_evaluation):

    def make(*args, **figures):
        evaluation = make_evaluation(*args, **figures)
        names = evaluation.classes
        more = {
            "confusion": {a: {b: 9 if a == b else 1 for b in (*names, "unknown")} for a in names},
            "rejection_roc": tuple(RocPoint(x / 9, (x / 9) ** 0.5) for x in range(10)),
            "rejected": RocPoint(0.05, 0.5),
            "robustness": Robustness(
                items=dict.fromkeys(names, 9),
                undistorted=dict.fromkeys(names, 0.9),
                distorted={"JPEG:3": dict.fromkeys(names, 0.6)},
            ),
        }

        def whole(performance):
            return performance and performance.model_copy(update=more)

        lost = tuple(
            Flip(exemplar=f"forgewatch.media-2-{number}", family=EVIL, before=EVIL, after="real")
            for number in range(3)
        )
        flips = Flips(items=90, lost=lost, won=2)
        parts = {"before": whole(evaluation.before), "after": whole(evaluation.after), "flips": flips}
        evaluation = evaluation.model_copy(update=parts)
        return evaluation.model_copy(update={"gates": make_gates(UpdaterSettings(), evaluation)})

    return make


@pytest.fixture
def paths(services, fill, proposed, begin_rollout, monkeypatch):
    """A view of each kind by its route, over a memory, releases and updates of which strangers named all."""
    monkeypatch.setattr("memory.index.shared_index._PATIENCE_S", 60)  # a busy machine
    file = Declared(declares="generated", generator=EVIL[:200], missed=True)
    fill("large", 60, source=EVIL, declared=[file] * 3)
    fill("small", 3, place=1)
    named = [fill(name, 6, source=EVIL, place=place) for place, name in enumerate(("first", "second"), 2)]
    for ids, what in zip(named, ("real", "blend"), strict=True):
        label(services.memory, ids, what, EVIL)
    rows = [
        SnapshotRow(exemplar=id_, media_digest="0", family=what, split=split, group=id_, source=EVIL, label=1)
        for ids, what in zip(named, ("real", "blend"), strict=True)
        for id_, split in zip(ids, SPLITS * 2, strict=True)
    ]
    live = proposed(rows=rows)
    evaluation = replay(services.ledger.events()).releases[live.digest].candidate.evaluation_digest
    releases.approve(services, EVIL, live.digest, Approve(evaluation_digest=evaluation))
    weak = proposed(EVIL, parent=live, new=("resampled",), rows=rows, named=0.2)
    trial = begin_rollout(live, proposed(EVIL, parent=live, new=(FAMILY,), rows=rows))
    for challenger, count in (("real", 60), (FAMILY, 30), ("unknown", 2), ("error", 1)):
        trial.compare("real", challenger, count, source=EVIL)
    trial.compare("blend", "real", 1)
    seen = replay(services.ledger.events()).trial
    assert seen is not None
    for move in (
        lambda history: moves.by_person(history, seen.release, "hold", EVIL, EVIL, services.evidence),
        lambda history: moves.judge(
            history,
            seen.release,
            {f"{services.ingest.media_topic}-0-1": EVIL},
            "bea",
            releases.terms(services),
        ),
        lambda history: moves.waive(
            history,
            Waive(digest=seen.release, check=REALS_LOST, reason=EVIL),
            "bea",
            releases.terms(services),
        ),
    ):
        make_moves(services.ledger, services.publisher, move)
    services.controller.tick()
    for number in range(3):
        services.runs.request(f"slot {number}", "manual", EVIL)
        lease = services.runs.claim("runner")
        assert lease is not None
        if number < 2:
            services.runs.finish(lease, "failed", error=EVIL)
        else:
            services.runs.heartbeat(lease, "train", 40, 100)
    item = make_item(0, topic=services.ingest.media_topic, source=EVIL)
    near = tuple(Neighbour(exemplar=id_, family="blend", distance=1.5) for id_ in named[1])
    verdict = make_verdict(
        item, release=live.digest, neighbours=near, unknown_parts={"energy": 0.5, "novelty": -1.0}
    )
    noted = [(InRecord("verdicts", 0, 0, time.time_ns() // 10**6, None, b"", ()), verdict)]
    others = [
        make_verdict(make_item(n, source=EVIL), release=live.digest, label="real") for n in range(1, 30)
    ]
    noted += [(replace(noted[0][0], offset=n), other) for n, other in enumerate(others, 1)]
    with services.memory.write_unversioned() as connection:
        note_verdicts(connection, noted)
        note_estimates(connection, noted, 10_000)
    for called in ("blend", "real", CANNOT_SAY):
        drawn = accuracy.list_audits(services, 1)[0]
        accuracy.audit(services, EVIL, AuditLabel(id=drawn.id, label=called))
    monkeypatch.setattr(back, "read_verdict", lambda *_: verdict)
    monkeypatch.setattr(SharedMedia, "picture", lambda *_: np.full((48, 64, 3), 90, np.uint8))
    monkeypatch.setattr(TrialScorer, "score", lambda *_: Tried(verdict, {"The picture": "name"}, EVIL))
    monkeypatch.setattr(TrialScorer, "picture", lambda *_: pictures.words(EVIL))
    facts = dict.fromkeys(("topic", "partition", "offset", "stage", "reason", "message"), EVIL)
    letter = DeadLetter(0, 7, 1000, facts, EVIL, EVIL, 12, "0" * 64)
    monkeypatch.setattr(dead_letters, "read_page", lambda *_: Letters((letter,) * 3, {0: 7}))
    typed = login.Typed("/page/releases", (("reason", EVIL), ("do", "reject")), time.monotonic())
    monkeypatch.setattr(login.KeptForms, "get", lambda *_: typed)
    raised = Raised(
        at=datetime(2026, 1, 1, tzinfo=UTC),
        source=EVIL,
        release=live.digest,
        items=100,
        since=60,
        log_e=9.0,
        log_limit=8.0,
    )
    with services.memory.write() as connection:
        put_raised(connection, raised, (), ())
    return {
        "/": "/",
        "/page/clusters": "/page/clusters",
        "/page/clusters/{cluster}": "/page/clusters/large",
        "/page/updates": "/page/updates",
        "/page/updates/{run}": "/page/updates/3",
        "/page/releases": "/page/releases",
        "/page/releases/{digest}": f"/page/releases/{weak.digest}",
        "/page/rollout": "/page/rollout",
        "/page/rollout/items": f"/page/rollout/items?champion=real&challenger={quote(FAMILY)}",
        "/page/verdicts": "/page/verdicts",
        "/page/verdicts/{id_}": f"/page/verdicts/{verdict.id}",
        "/page/dead-letters": "/page/dead-letters",
        "/page/sources": "/page/sources",
        "/page/accuracy": "/page/accuracy",
        "/page/audit": "/page/audit",
        "/page/misses": "/page/misses",
        "/page/source": f"/page/source?name={quote(EVIL)}",
        "/page/source/purge": f"/page/source/purge?name={quote(EVIL)}",
        "/page/record": "/page/record",
        "/page/try": "/page/try",
        "/page/people": "/page/people",
        "/page/kept/{name}": "/page/kept/some",
        "/login": "/login",
        "/docs": "/docs",
    }


def test_each_view_is_accessible_fits_and_shows_what_strangers_wrote_as_text(paths, services, open_page):
    root = Person("root", frozenset({"admin"}), "token")
    wanted = [TokenRequest(name=name, role="admin", days=1) for name in ("ann", EVIL[2:])]
    tokens = {made.name: services.access.tokens.add(made, root).token for made in wanted}
    if not AXE.is_file():
        pytest.skip("tests/deploy/page/browser/tools.sh has not fetched axe-core")
    window, wrong = open_page(), []
    window.goto("/login")
    window.get_by_label("Your token").fill(tokens["ann"])
    window.get_by_role("button", name="Sign in").click()
    for path in paths.values():
        answer = window.goto(path)
        assert answer is not None
        assert answer.status == 200, path
        wrong += [f"{path}: {problem}" for problem in _problems(window)]

    window.goto("/page/try")
    tried = {"name": f"{EVIL.replace('/', '')}.png", "mimeType": "image/png", "buffer": b"some bytes"}
    window.get_by_label("Pictures or videos").set_input_files([tried, tried])
    window.get_by_role("button", name="Check").click()
    expect(window.get_by_role("status").first).to_be_visible()
    wrong += [f"what was tried: {problem}" for problem in _problems(window)]

    window.goto(paths["/page/clusters/{cluster}"])
    window.get_by_label("Apply label to").fill(EVIL)
    window.get_by_role("button", name="Label", exact=True).click()
    expect(window.get_by_role("alert")).to_be_visible()
    window.keyboard.press("?")
    expect(window.get_by_role("dialog")).to_be_visible()
    wrong += [f"a refused name, below the list of keys: {problem}" for problem in _problems(window)]
    assert not wrong, "\n".join(wrong)


def _problems(window):
    """What is wrong with what a window shows, at every width, light and dark."""
    window.wait_for_load_state("networkidle")
    problems = _unsafe(window)
    window.evaluate(AXE.read_text())
    for width, height in WIDTHS.items():
        window.set_viewport_size({"width": width, "height": height})
        # At its end a page's bar of actions covers nothing.
        window.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        if (wide := window.evaluate("document.documentElement.scrollWidth")) > width:
            problems.append(f"{wide} px wide at {width}")
        # A matrix is as wide as it has classes, and is moved in its card.
        numbers = window.locator("table:not(.heat) .num:visible")
        off = numbers.evaluate_all(
            "all => all.filter(x => x.getBoundingClientRect().right > innerWidth).length"
        )
        problems += [f"{off} numbers are off a phone's screen"] * (width == 390 and off > 0)
        for scheme in ("light", "dark"):
            window.emulate_media(color_scheme=scheme)
            found = window.evaluate("rules => axe.run({runOnly: rules})", RULES)
            problems += [
                f"{width} {scheme}: {each['id']} {node['html'][:200]} {node['failureSummary']}"
                for each in found["violations"]
                for node in each["nodes"][:3]
            ]
    return problems


def _unsafe(window):
    """Texts that may change the direction of what is beside them."""
    found = window.evaluate(
        """() => {
            const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
            while (walker.nextNode()) {
                const text = walker.currentNode;
                if (text.parentElement.closest("textarea")) continue;  // what is typed there stays as it is
                const overrides = /[\\u202a-\\u202e\\u2066-\\u2069\\u0007]/.test(text.data);
                const alone = text.parentElement.closest("bdi");
                if (overrides || /[\\u0600-\\u06ff]/.test(text.data) && !alone) found.push(text.data);
            }
            return found;
        }"""
    )
    return [f"not isolated: {text!r}" for text in found]


REPRESENTATION = re.compile(
    r"""\[['"]|\(['"]|\{['"]|['"]\]|\b(None|True|False|nan)\b|\b\w+\(\w+=|<\w[\w.]* object|\w: \["""
)
"""How Python shows what is no text."""


def test_no_view_prints_what_python_shows_of_a_thing(paths, page):
    for view, path in paths.items():
        shown = page.get(path)
        text = html.unescape(re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", shown.text, flags=re.DOTALL))
        assert shown.status_code == 200, view
        # /docs quotes code; strangers may write what they like.
        found = [] if view == "/docs" else REPRESENTATION.findall(text.replace(EVIL, ""))
        assert not found, (view, found)


def test_what_would_be_printed_as_python_has_it_ends_the_view():
    for value in ([1], {"a": 1}, None, True, datetime(2026, 1, 1, tzinfo=UTC), DeadLetter):
        with pytest.raises(TypeError, match="would print"):
            _environment().from_string("{{ value }}").render(value=value)


def test_every_view_is_looked_at(paths, page):
    routers = [route.original_router for route in page.app.routes if not hasattr(route, "path")]
    views = {
        route.path
        for router in routers
        for route in router.routes
        if "GET" in route.methods and route.path.startswith("/page/")
        if "static" not in route.path and not route.path.endswith(".png")
    }
    assert views | {"/", "/login", "/docs"} == set(paths)

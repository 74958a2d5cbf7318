"""What the view of a rollout shows, and what its forms do."""

import io
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
from PIL import Image

from deploy.access.roles import Person, TokenRequest
from deploy.page import releases as release_page
from deploy.releases.publish import make_moves
from deploy.releases.standing import replay
from deploy.rollout_records import Plan
from deploy.rollouts import moves
from deploy.rollouts.checks import NOT_ALONE
from deploy.server.pictures import NoPictureError
from deploy.server.releases import terms
from tests.deploy.page.conftest import approve
from updater.evaluation_parts import Flip, Flips

pytestmark = pytest.mark.slow

LOOK = "/page/rollout/items?champion=real&challenger=resampled"


def trial(services):
    return replay(services.ledger.events()).trial


def undecided(services, why):
    seen = trial(services)
    make_moves(
        services.ledger, services.publisher, lambda history: moves.inconclusive(history, seen, (), why)
    )


def ids(shown):
    return [line.partition('"')[0] for line in shown.text.split('name="ids" value="')[1:]]


def test_without_a_rollout_one_sentence_says_so(page):
    shown = page.get("/page/rollout")
    assert "No release is on trial." in shown.text
    assert "<button" not in shown.text.partition("<main")[2].partition("</main>")[0]


def test_a_rollout_is_shown_with_its_steps_its_checks_and_both_verdicts(page, on_trial):
    assert "Both have scored no item yet." in page.get("/page/rollout").text
    on_trial.compare("real", "real", 150)
    on_trial.compare("real", "unknown", 2)
    on_trial.compare("blend", "resampled", 40)
    on_trial.compare("error", "real", 1)
    shown = page.get("/page/rollout").text
    assert ("Shadow 25 %" in shown, "Canary 5 %" in shown, 'aria-current="step"' in shown) == (True,) * 3
    assert "is on trial, scores 25%, answers 0%: It waits for evidence on" in page.get("/").text
    assert ">2</a>" in shown
    assert "on 193 items that both scored" in shown
    assert "declares generation" not in shown
    on_trial.compare("real", "unknown", 2, declared=True)
    assert "2 of 2, 100.0 % (22.4 to 100.0)" in page.get("/page/rollout").text
    for check in ("real → unknown or a known fake", "sure blend → real", "could not score, net"):
        assert check in shown
    assert '<span class="tag ok">passed</span>' in shown
    assert "It waits for evidence on" in shown
    assert "It needs a person." not in shown
    assert (
        'href="/page/rollout"'
        in page.get(f"/page/releases/{on_trial.challenger.digest}").text.partition("<main")[2]
    )


def test_reals_that_a_new_family_takes_need_a_person_who_labels_them(page, on_trial, services):
    on_trial.compare("real", "real", 60)
    on_trial.compare("real", "resampled", 25)
    shown = page.get("/page/rollout").text
    assert 'class="note" role="status"' in shown
    assert LOOK.replace("&", "&amp;") in shown
    items = ids(page.get(LOOK))
    assert len(items) == 24
    assert len(ids(page.get(f"{LOOK}&page=2"))) == 1
    assert ids(page.get(LOOK.replace("resampled", "real"))) == []  # both agree: nothing is labelled
    digest = on_trial.challenger.digest

    def submit(**fields):
        held = page.get(LOOK).text.partition('name="form_token" value="')[2].partition('"')[0]
        return page.post(LOOK, data={"form_token": held, "digest": digest, **fields})

    nothing = submit(called="real")
    assert (nothing.status_code, "select items first" in nothing.text) == (422, True)
    unnamed = submit(ids=items[:2], called="", family=" ")
    assert (unnamed.status_code, "choose a label" in unnamed.text) == (422, True)
    assert [unnamed.text.count(f'value="{id_}" checked') for id_ in items[:3]] == [1, 1, 0]
    other = submit(ids=["forgewatch.media-9-9"], called="real")
    assert (other.status_code, "is no item of this rollout on which" in other.text) == (404, True)
    assert submit(ids=items[:19], called="", family="resampled").status_code == 200
    assert submit(ids=items[19], called="real").status_code == 200
    labels = trial(services).labels
    assert sorted(labels.values()) == ["real", *["resampled"] * 19]
    assert "labelled <b>" in page.get(LOOK).text
    services.controller.tick()
    assert 'class="note"' not in page.get("/page/rollout").text


def test_items_stay_open_while_the_comparisons_are_read_anew_by_new_labels(page, on_trial, services):
    on_trial.compare("real", "resampled", 2)
    first, second = ids(page.get(LOOK))
    on_trial.slow = True
    for item in (first, second):
        labels = {item: "real"}
        moved = page.post(
            "/rollouts/labels",
            json={"digest": on_trial.challenger.digest, "labels": labels},
            headers={"X-Forgewatch-Actor": "eve"},
        )
        assert moved.status_code == 200, moved.text
        services.controller.tick()
        assert ids(page.get(LOOK)) == [first, second]
    on_trial.slow = False
    services.controller.tick()
    assert [item.label for item in services.controller.items("real", "resampled")] == ["real", "real"]


def test_hold_resume_and_roll_back_take_a_reason_and_the_release_that_was_seen(page, on_trial, services):
    digest = on_trial.challenger.digest
    silent = page.submit("/page/rollout", do="hold", digest=digest, reason=" ")
    assert (silent.status_code, "reason: " in silent.text) == (422, True)
    other = page.submit("/page/rollout", do="roll back", digest="0" * 64, reason="<b>too slow</b>")
    assert other.status_code == 409
    assert 'value="&lt;b&gt;too slow&lt;/b&gt;"' in other.text  # what was typed stays
    held = page.submit("/page/rollout", do="hold", digest=digest, reason="holiday")
    assert ("Resume" in held.text, "holiday" in held.text) == (True, True)
    assert trial(services).held
    assert ">Hold<" in page.submit("/page/rollout", do="resume", digest=digest, reason="back").text
    gone = page.submit("/page/rollout", do="roll back", digest=digest, reason="<i>worse</i>")
    assert "No release is on trial." in gone.text
    assert ("taken out" in gone.text, "&lt;i&gt;worse&lt;/i&gt;" in gone.text) == (True, True)
    late = page.get("/page/rollout")
    assert late.status_code == 200
    assert trial(services) is None


def test_what_the_evidence_took_out_is_shown_with_its_checks(page, on_trial):
    on_trial.compare("real", "real", 60)
    on_trial.compare("real", "blend", 60)
    assert "only new names shows it" in page.get("/page/rollout").text
    act = {"digest": on_trial.challenger.digest, "reason": "our own camera"}
    assert "camera 9" in page.submit("/page/rollout", do="leave out", source="camera 9", **act).text
    page.submit("/page/rollout", do="waive", check=NOT_ALONE, **act)
    on_trial.compare("real", "real", 1)
    shown = page.get("/page/rollout").text
    assert "No release is on trial." in shown
    assert "taken out" in shown
    assert '<span class="tag bad">failed</span>' in shown
    assert "60" in shown.partition("real → unknown or a known fake")[2]


def test_an_inconclusive_rollout_offers_its_ways_on(page, on_trial, services):
    undecided(services, "no traffic")
    services.controller.tick()
    shown = page.get("/page/rollout").text
    assert ("Options" in shown, 'class="note" role="status"' in shown) == (True, True)
    assert 'Rollout <span class="n wait">1' in page.get("/").text
    digest, check = on_trial.challenger.digest, "over twice as slow, net"
    waived = page.submit("/page/rollout", do="waive", digest=digest, reason="another machine", check=check)
    assert "another machine" in waived.text
    assert trial(services).waived == {check: "another machine"}
    wrong = page.submit("/page/rollout", do="waive", digest=digest, reason="again", check=check)
    assert (wrong.status_code, "was waived before" in wrong.text) == (409, True)
    undecided(services, "still none")
    assert "Give it more time" in page.get("/page/rollout").text
    page.submit("/page/rollout", do="extend", digest=digest, reason="a quiet day")
    undecided(services, "none at all")
    shown = page.get("/page/rollout").text
    assert ("Options" in shown, "Give it more time" in shown) == (True, False)


@pytest.mark.parametrize(
    ("role", "labels", "turns"), [("viewer", 0, 0), ("reviewer", 1, 0), ("approver", 1, 1)]
)
def test_who_may_not_act_has_no_form(page, on_trial, services, role, labels, turns):
    on_trial.compare("real", "resampled", 1)
    root = Person("root", frozenset({"admin"}), "token")
    made = services.access.tokens.add(TokenRequest(name="vic", role=role, days=1), root)
    page.headers["Authorization"] = f"Bearer {made.token}"
    assert page.get(LOOK).text.count('id="do-real"') == labels
    assert page.get("/page/rollout").text.count('id="do-hold"') == turns
    refused = page.post("/page/rollout", data={"do": "hold"}).status_code
    assert (refused == 403) == (not turns)


def test_an_item_s_media_is_shown_or_why_not_and_of_others_nothing(page, on_trial, services, monkeypatch):
    on_trial.compare("real", "resampled", 2)
    asked = []

    def picture(item, digest):
        asked.append((item, digest))
        if len(asked) > 1:
            raise NoPictureError("its topic no longer has it")
        return np.zeros((4, 6, 3), np.uint8)

    monkeypatch.setattr(services.shared_media, "picture", picture)
    paths = [
        unescape(line.partition('"')[0]) for line in page.get(LOOK).text.split('<img class="whole" src="')[1:]
    ]
    shown, gone = (Image.open(io.BytesIO(page.get(path).content)) for path in paths)
    assert (shown.size, gone.size) == ((6, 4), (256, 256))
    assert asked[0][1] == "0" * 64
    other = page.get(
        "/page/rollout/items/picture.png", params={"id": "forgewatch.media-0-9", "digest": "0" * 64}
    )
    assert (other.status_code, len(asked)) == (404, 2)


def test_a_rollback_in_the_midst_of_a_rollback_or_of_a_step_is_one_clear_refusal(page, on_trial, services):
    champion, challenger = on_trial.champion.digest, on_trial.challenger.digest
    seen = trial(services)
    body = {"reason": "worse", "digest": challenger}
    headers = {"X-Forgewatch-Actor": "ada"}
    assert page.post("/rollback", json=body, headers=headers).json()["digest"] == champion
    again = page.post("/rollback", json=body, headers=headers)
    assert again.status_code == 409
    refusal = again.json()["detail"]
    assert refusal == (
        f"release {challenger[:12]} neither answers nor is on trial: {champion[:12]} is live; look again"
    )
    assert replay(services.ledger.events()).live.digest == champion
    # A step that was decided before the rollback comes too late, and writes nothing.
    stored = services.artifacts.evidence(challenger)
    late = make_moves(
        services.ledger, services.publisher, lambda history: moves.step_on(history, seen, (), stored)
    )
    assert late == ()
    held = page.post("/rollouts/turn", params={"action": "hold"}, json=body, headers=headers)
    refusal = f"release {challenger[:12]} is not on trial: no release is; look again"
    assert (held.status_code, held.json()["detail"]) == (409, refusal)


def test_a_release_that_is_taken_back_stands_in_the_view_with_what_it_waits_for(page, proposed, services):
    champion = proposed()
    approve(services, champion)
    bad = proposed(parent=champion)
    approve(services, bad, plan="now")
    assert "Retractions" not in page.get("/page/rollout").text
    shown = page.submit(f"/page/releases/{bad.digest}", do="roll back", reason="worse")
    assert shown.status_code == 200
    taken_back = page.get("/page/rollout").text.partition("<h2>Retractions</h2>")[2].partition("</table>")[0]
    assert bad.digest[:12] in taken_back
    assert '<span class="tag wait">waiting</span> <small><bdi>It waits until its outcomes' in taken_back


def test_before_anybody_approves_the_expected_shares_stand_beside_the_bounds(
    page, proposed, begin_rollout, services, monkeypatch
):
    champion = proposed()
    approve(services, champion)
    waiting = proposed("ann", parent=champion, new=("resampled",))
    view = f"/page/releases/{waiting.digest}"
    assert "Its rollout checks" not in page.get(view).text  # an older evaluation does not say
    made = services.evaluations.of(replay(services.ledger.events()).releases[waiting.digest])
    reals = {"real": {"real": 100}, "blend": {"blend": 40}}
    lost = [("real", "unknown")] * 5 + [("blend", "real")]
    flips = [Flip(exemplar="x", family=what, before=what, after=called) for what, called in lost]
    told = made.model_copy(
        update={
            "before": made.before.model_copy(update={"confusion": reals}),
            "flips": Flips(items=140, lost=tuple(flips), won=0),
        }
    )
    monkeypatch.setattr(services.evaluations, "of", lambda _: told)
    assert "Its rollout checks" not in page.get(view).text  # by the plan now, there is none
    monkeypatch.setattr(release_page, "terms", lambda opened: replace(terms(opened), plan=Plan()))
    shown = page.get(view).text
    over = shown.partition("Expected beyond its bound:")[2].partition("</p>")[0]
    assert ("real → unknown or a known fake" in over, "5.0 %" in over, "blend" in over) == (True, True, False)
    assert ("most likely take it out" in shown, '<span class="tag bad">never</span>' in shown) == (True, True)
    assert "2.5 %<small>1 of 40</small>" in shown
    on_trial = begin_rollout(champion, waiting)
    on_trial.compare("real", "real", 20)
    assert "expected 5.0 %" in page.get("/page/rollout").text

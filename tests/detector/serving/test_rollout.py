"""Deploy's word counts, whatever the releases topic says."""

import json
import math
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from detector.records import Rollout, in_share
from detector.serving import rollout as rollout_module
from detector.serving import rollout_source
from detector.serving.rollout import Route, Serving
from detector.serving.rollout_source import (
    LONGEST_PAUSE_S,
    STATES,
    FetchError,
    Pause,
    RolloutClient,
    TokenRefusedError,
)
from detector.serving.torchserve import StartError
from detector.settings import DetectorSettings

A, B, C = "a" * 64, "b" * 64, "c" * 64
OURS, THEIRS = "0" * 32, "f" * 32


def rollout(stable=A, sequence=3, ledger=OURS, epoch=0):
    return Rollout(ledger=ledger, epoch=epoch, sequence=sequence, stable=stable)


def said(wanted, newest, answer):
    future = Future()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    assert wanted.due(newest)
    wanted.on_reply(newest, future)


def state():
    name = "forgewatch_detector_rollout_state"
    (found,) = [each for each in STATES if REGISTRY.get_sample_value(name, {"state": each})]
    return found


def unconfirmed():
    return REGISTRY.get_sample_value("forgewatch_detector_unconfirmed_rollouts_total") or 0.0


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setattr(rollout_source, "LONGEST_PAUSE_S", 1e-9)
    return DetectorSettings(model_store_dir=tmp_path)


def test_nothing_is_served_before_deploy_was_asked(settings):
    wanted = RolloutClient(settings)
    assert wanted.due(rollout())
    assert wanted.rollout is None
    said(wanted, rollout(), FetchError("no answer"))
    assert wanted.rollout is None
    assert state() == "unreachable"
    said(wanted, rollout(), TokenRefusedError("HTTP 401"))
    assert state() == "refused"


def test_what_deploy_confirms_is_followed_and_then_it_is_left_alone(settings):
    wanted = RolloutClient(settings)
    said(wanted, rollout(), rollout())
    assert (wanted.rollout, state()) == (rollout(), "confirmed")
    assert not wanted.due(rollout())
    assert wanted.due(rollout(B, 6))


@pytest.mark.parametrize(
    "forged", [rollout(B, 10**9), rollout(B, 3), rollout(B, 1, THEIRS), rollout(B, 10**9, THEIRS, 99)]
)
def test_a_record_that_deploy_does_not_confirm_is_not_served_but_told_and_counted_once(settings, forged):
    wanted = RolloutClient(settings)
    said(wanted, rollout(), rollout())
    before = unconfirmed()
    for _ in range(3):
        said(wanted, forged, rollout())
    assert (wanted.rollout, state()) == (rollout(), "unconfirmed")
    assert unconfirmed() == before + 1
    said(wanted, rollout(), rollout())
    assert state() == "confirmed"


def test_a_topic_that_is_only_behind_is_no_forgery(settings):
    wanted = RolloutClient(settings)
    before = unconfirmed()
    said(wanted, rollout(), rollout(B, 6))
    assert (wanted.rollout, state(), unconfirmed()) == (rollout(B, 6), "confirmed", before)


def test_a_restored_ledger_is_followed_though_its_sequence_is_lower(settings):
    wanted = RolloutClient(settings)
    said(wanted, rollout(B, 60), rollout(B, 60))
    restored = rollout(A, 3, epoch=1)
    said(wanted, restored, restored)
    assert (wanted.rollout, state()) == (restored, "confirmed")
    anew = rollout(B, 3, THEIRS)
    said(wanted, anew, anew)
    assert (wanted.rollout, state()) == (anew, "confirmed")


def test_a_deploy_that_lost_its_ledger_stops_nothing_and_is_told(settings):
    wanted = RolloutClient(settings)
    said(wanted, rollout(), rollout())
    said(wanted, rollout(B, 9), None)
    assert (wanted.rollout, state()) == (rollout(), "nothing_approved")


@pytest.mark.parametrize("answer", [FetchError("no answer"), None])
def test_after_a_restart_what_was_served_last_is_served_while_deploy_says_nothing(settings, answer):
    RolloutClient(settings).keep(rollout())
    wanted = RolloutClient(settings)
    assert wanted.rollout is None
    said(wanted, rollout(B, 10**9), answer)
    assert wanted.rollout == rollout()
    said(wanted, rollout(B, 6), rollout(B, 6))
    assert wanted.rollout == rollout(B, 6)


@pytest.mark.parametrize("kept", [b"", b"{}", json.dumps({"stable": "/etc"}).encode()])
def test_a_damaged_file_of_what_was_served_is_as_good_as_none(settings, kept):
    (settings.model_store_dir / "rollout.json").write_bytes(kept)
    assert RolloutClient(settings).kept is None


@given(st.floats(0.001, 10), st.floats(0.001, 1000), st.integers(1, 200))
def test_pauses_double_up_to_the_longest(first_s, max_s, failures):
    with pytest.MonkeyPatch.context() as patch:
        clock = SimpleNamespace(now=0.0)
        patch.setattr(rollout_source, "time", SimpleNamespace(monotonic=lambda: clock.now))
        patch.setattr(rollout_source, "FIRST_PAUSE_S", first_s)
        pause = Pause()
        assert pause.due
        for failure in range(failures):
            began, expected = clock.now, min(max_s, first_s * 2.0 ** min(failure, 64))
            pause.on_failure(max_s)
            clock.now = began + expected * 0.99
            assert not pause.due
            clock.now = began + expected * 1.01
            assert pause.due
        pause.on_failure(max_s, long=True)
        clock.now += max_s * 0.99
        assert not pause.due
        pause.rest(0.0)
        assert pause.due
        assert pause.failures == 0


IDS = st.builds(
    lambda topic, partition, offset: f"{topic}-{partition}-{offset}", st.text(), ints := st.integers(0), ints
)
SHARES = st.floats(0, 1)


@given(IDS, SHARES, SHARES)
def test_a_larger_share_holds_all_of_a_smaller_one(item_id, one, other):
    assert in_share(item_id, min(one, other)) <= in_share(item_id, max(one, other))


def test_an_id_has_the_same_place_in_every_process_and_version():
    taken = [offset for offset in range(12) if in_share(f"forgewatch.media-0-{offset}", 0.25)]
    assert taken == [2, 3, 5]


@given(IDS)
def test_no_share_takes_none_and_the_whole_takes_all(item_id):
    assert not in_share(item_id, 0.0)
    assert in_share(item_id, 1.0)


@examples(derandomize=True)
@given(st.text(max_size=20), st.integers(0, 500), SHARES)
def test_a_share_is_taken_within_binomial_bounds(topic, partition, share):
    count = 4000
    taken = sum(in_share(f"{topic}-{partition}-{offset}", share) for offset in range(count))
    assert abs(taken - count * share) <= 5 * math.sqrt(count * share * (1 - share)) + 1


def test_what_the_canary_answers_is_shared_and_without_a_canary_nothing_is():
    stable = SimpleNamespace(digest="a" * 64)
    canary = SimpleNamespace(digest="b" * 64)
    ids = [f"media-0-{offset}" for offset in range(500)]
    route = Route(stable, canary, 0.1, 0.3)
    assert [route.shares(each) for each in ids] == [in_share(each, 0.3) for each in ids]
    assert all(route.shares(each) for each in ids if route.canary_answers(each))
    assert set(route.releases) == {stable.digest, canary.digest}
    assert not any(Route(stable, None, 0.1, 0.3).shares(each) for each in ids)
    refused = Route(stable, None, 0.1, 0.3, refused=(canary.digest, "no"))
    assert [refused.shares(each) for each in ids] == [route.shares(each) for each in ids]
    assert set(refused.releases) == {stable.digest}


@pytest.mark.parametrize(("failing", "least", "most"), [(A, 20, 30), (B, 5, 12)], ids=["live", "challenger"])
def test_a_release_that_does_not_start_is_tried_seldom(settings, monkeypatch, failing, least, most):
    clock, fails, tries = SimpleNamespace(now=0.0), set(), []
    monkeypatch.setattr(rollout_source, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def start(digest):
        if digest in fails:
            tries.append(clock.now)
            raise StartError("Failed to start workers")

    with serving_of(settings, start, canary=B) as serving:
        rest(serving)
        assert serving.route.releases.keys() == {A, B}
        fails.add(failing)
        serving.request_reload(serving.route.releases[failing])
        for _ in range(20):
            clock.now += LONGEST_PAUSE_S
            rest(serving)
    assert least <= len(tries) <= most


@pytest.mark.parametrize(
    ("failing", "canary", "previous", "serves"),
    [(A, None, B, B), (A, B, C, C), (A, None, None, A), (B, B, C, A)],
    ids=["live", "live in a rollout", "live, and no other", "challenger"],
)
def test_a_release_that_fails_at_several_items_is_taken_out_until_deploy_names_it_anew(
    settings, failing, canary, previous, serves
):
    with serving_of(settings, lambda digest: None, canary=canary, previous=previous) as serving:
        wanted = serving.rollout
        rest(serving)
        for _ in range(2):
            serving.blame(failing[:12], "20 s")
        rest(serving)
        assert serving.route.stable.digest == A
        serving.blame(failing[:12], "20 s")
        rest(serving)
        rest(serving)
        assert serving.route.stable.digest == serves
        if failing == canary:
            assert serving.route.canary is None
            assert serving.route.refused == (B, "it fails at 3 items: 20 s")
        else:
            assert (serving.route.canary and serving.route.canary.digest) == canary
        serving._wanted.rollout = rollout(C)
        rest(serving)
        serving._wanted.rollout = wanted
        rest(serving)
        assert serving.route.stable.digest == A
        assert serving.route.releases.keys() == {A, canary or A}


def test_failures_that_lie_far_apart_take_no_release_out(settings, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(rollout_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with serving_of(settings, lambda digest: None, previous=B) as serving:
        for _ in range(9):
            rest(serving)
            serving.blame(A[:12], "20 s")
            clock.now += 1801.0
        rest(serving)
        assert serving.route.stable.digest == A


@contextmanager
def serving_of(settings, start, **said):
    """Serves what deploy names, A and what is said beside it; `start` befalls each release that comes."""

    def bring(digest, _):
        start(digest)
        manifest = SimpleNamespace(classes=("real", "blend"))
        return SimpleNamespace(digest=digest, version=digest[:12], manifest=manifest)

    share = 0.5 if said.get("canary") else 0.0
    shares = {"canary_share": share, "shared_share": share}
    named = {"ledger": OURS, "epoch": 0, "sequence": 3, "stable": A, **shares}
    loader = SimpleNamespace(bring=bring, reconcile=lambda end: None)
    wanted = SimpleNamespace(
        rollout=Rollout.model_validate(named | said), kept=None, due=lambda newest: False
    )
    topic = SimpleNamespace(poll=lambda: None)
    with Serving(settings, loader, topic, wanted) as serving:
        yield serving


def rest(serving):
    """Take all steps that are to be taken now."""
    serving.tick()
    while serving._step is not None:
        wait([serving._step[0]])
        serving.tick()

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from verdicts import make_item, make_verdict

from ingest.records import InRecord
from memory import metrics
from memory.acts import acts_after
from memory.schema import drift_alarms, drift_watched
from memory.shift import places
from memory.shift.alarms import put_announced
from memory.shift.drift import NEWEST, STATISTICS, DriftTest, list_drifts, load, to_announce, watch_drift
from memory.shift.places import OVER_ALL
from memory.shift.shelving import DRIFT_TYPE, event
from memory.shift.watch import ShiftWatch

UNSHIFTED = dict.fromkeys(STATISTICS, 0.0)


@pytest.fixture(autouse=True)
def drawn_alike(monkeypatch):
    # Else a test may meet the false alarm that the budget allows.
    monkeypatch.setattr("memory.shift.drift.secrets.randbits", lambda bits: 7)


def verdicts(first, count, *, source="camera", shift=UNSHIFTED, **changes):
    """Verdicts of any label whose statistics are normal, each shifted by so many deviations."""
    rng = np.random.default_rng(first)
    made = []
    for offset, values in enumerate(rng.normal(size=(count, 3)), start=first):
        score, energy, distance = (
            float(value + shift.get(name, 0)) for name, value in zip(STATISTICS, values, strict=True)
        )
        item = make_item(offset, source=source, media_id="id", digest=f"{offset * 2**200:064x}")
        found = {
            "label": ("real", "fake", "unknown")[offset % 3],
            "unknown_parts": {"embedding_novelty": distance},
        }
        said = found | {"unknown_score": score, "energy": energy} | changes
        made.append((source, make_verdict(item, **said)))
    return made


def watch(store, settings, some):
    found = []
    for first in range(0, len(some), 50):
        with store.write_unversioned() as connection:
            found += watch_drift(connection, some[first : first + 50], settings)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize(("deviations", "direction"), [(1.0, "higher"), (-1.0, "lower")])
def test_a_drift_of_any_statistic_is_told_within_100_items(store, settings, statistic, deviations, direction):
    before = verdicts(0, 1000)
    assert watch(store, settings, before) == []
    found = watch(store, settings, verdicts(1000, 100, shift={statistic: deviations}))
    assert {(drift.statistic, drift.direction) for drift in found} == {(statistic, direction)}
    assert {drift.source for drift in found} <= {"camera", None}
    assert all(drift.log_e >= drift.log_limit for drift in found)
    assert all(drift.since <= 100 for drift in found)


def test_a_new_camera_is_told_over_all_though_its_own_test_knows_nothing_else(store, settings):
    watch(store, settings, verdicts(0, 1000))
    found = watch(store, settings, verdicts(1000, 100, source="new camera", shift={"energy": 1.0}))
    assert [(drift.source, drift.statistic, drift.direction) for drift in found] == [
        (None, "energy", "higher")
    ]


def test_what_does_not_drift_raises_no_alarm(store, settings):
    assert watch(store, settings, verdicts(0, 1500)) == []


def test_the_same_media_sent_again_and_again_is_one_item(store, settings):
    watch(store, settings, verdicts(0, 300))
    ((source, again),) = verdicts(300, 1, shift={"energy": 4.0})
    assert watch(store, settings, [(source, again)] * 300) == []


def test_a_verdict_whose_digest_is_none_is_an_item_like_any_other(store, settings):
    item = make_item(1, digest="no digest \u20ac")
    watch(store, settings, [("camera", make_verdict(item)), ("camera", make_verdict(item)), *verdicts(2, 1)])
    with store.read() as connection:
        assert load(connection, "a" * 64, "camera", settings).test.tests["energy"].seen == 2


def test_a_statistic_that_a_release_does_not_give_or_that_is_not_finite_is_left_out(store, settings):
    some = verdicts(0, 150, unknown_parts=None, energy=float("inf"))
    watch(store, settings, some)
    with store.read() as connection:
        tests = load(connection, "a" * 64, "camera", settings).test.tests
    assert [tests[name].seen for name in STATISTICS] == [150, 0, 0]


def test_tests_of_drift_and_of_shift_share_one_budget(store, settings):
    watch(store, settings, verdicts(0, 101))
    with store.read() as connection:
        numbers = [load(connection, "a" * 64, name, settings).number for name in ("camera", OVER_ALL)]
    assert numbers == [1, 2]  # with the second and the fourth share; the first is the first shift test's


def test_after_a_drift_its_test_gathers_anew_and_the_other_goes_on(store, settings):
    watch(store, settings, verdicts(0, 1000))
    (drift,) = watch(store, settings, verdicts(1000, 60, source="other", shift={"energy": 3.0}))
    assert drift.source is None
    with store.read() as connection:
        over_all, camera = (load(connection, "a" * 64, name, settings) for name in (OVER_ALL, "camera"))
    assert over_all.number == 0
    assert over_all.test.bets == 0
    assert camera.test.bets == 900


def test_what_is_kept_is_bounded(store, settings, monkeypatch):
    monkeypatch.setattr(places, "MAX_SOURCES", 5)
    watch(store, settings, [v for n in range(30) for v in verdicts(n * 10, 1, source=f"key-{n}")])
    watch(store, settings, verdicts(10_000, 1400))
    with store.read() as connection:
        sources = {row.source for row in connection.execute(drift_watched.select())}
        state = load(connection, "a" * 64, "camera", settings).test.to_bytes()
    assert len(sources) <= 7
    assert OVER_ALL in sources
    assert len(state) < 25_000


def test_the_watch_counts_keeps_and_tells_a_drift(store, settings):
    before = metrics.DRIFT_ALARMS.labels("energy")._value.get()
    watcher = ShiftWatch(settings)
    some = verdicts(0, 300) + verdicts(300, 60, shift={"energy": 3.0})
    for first in range(0, len(some), 60):
        batch = enumerate(some[first : first + 60], start=first)
        watcher.take(
            [InRecord("verdicts", 0, n, 0, None, v.model_dump_json().encode(), ()) for n, (_, v) in batch]
        )
    watcher.close()
    with store.read() as connection:
        waiting = to_announce(connection)
        assert waiting == list_drifts(connection, 10)
    assert {alarm.source for alarm in waiting} == {"camera", None}
    assert metrics.DRIFT_ALARMS.labels("energy")._value.get() == before + len(waiting)
    told = event(waiting[0], "alarms")
    assert dict(told.headers)["ce_type"] == DRIFT_TYPE.encode()
    assert dict(told.headers)["ce_id"] == f"drift-{waiting[0].id}".encode()
    assert [event(alarm, "alarms").key for alarm in waiting if alarm.source is None] == [b""]
    with store.write_unversioned() as connection:
        put_announced(connection, [alarm.id for alarm in waiting], drift_alarms)
        assert to_announce(connection) == []


@pytest.mark.parametrize(
    "streams", [pytest.param(60, id="few"), pytest.param(400, id="many", marks=pytest.mark.slow)]
)
def test_the_share_of_streams_without_a_drift_that_raise_an_alarm_is_bounded(streams):
    alarms = 0
    for stream in range(streams):
        test = DriftTest.begin((stream, stream + 10**6, stream + 2 * 10**6), 20, 40)
        for _, verdict in verdicts(stream * 150, 150):
            test.observe(verdict)
            if test.strongest_finding(0.2) is not None:
                alarms += 1
                break
    assert alarms / streams <= 0.2


@given(st.lists(st.floats(-1e6, 1e6, width=32), max_size=30), st.integers(0, 30))
def test_a_test_that_was_put_away_and_taken_up_again_goes_on_as_it_was(values, stop):
    some = [
        make_verdict(make_item(n, digest=f"{n * 2**200:064x}"), energy=v, unknown_score=-v)
        for n, v in enumerate(values)
    ]
    straight, interrupted = (DriftTest.begin((1, 2, 3), 5, 8) for _ in range(2))
    for verdict in some[:stop]:
        interrupted.observe(verdict)
    taken_up = DriftTest.from_bytes(interrupted.to_bytes())
    for verdict in some:
        straight.observe(verdict)
    for verdict in some[stop:]:
        taken_up.observe(verdict)
    assert straight.to_bytes() == taken_up.to_bytes()
    assert len(straight.media) <= NEWEST


def test_a_drift_is_an_act_of_the_record_in_the_transaction_that_finds_it(store, settings):
    def stopped():
        with store.write_unversioned() as connection:
            assert watch_drift(connection, shifted, settings)
            raise KeyboardInterrupt

    shifted = [*verdicts(0, 600), *verdicts(600, 400, shift={**UNSHIFTED, "energy": 3.0})]
    with pytest.raises(KeyboardInterrupt):
        stopped()
    with store.read() as connection:
        assert acts_after(connection, 0, 10) == []
    with store.write_unversioned() as connection:
        found = watch_drift(connection, shifted, settings)
    with store.read() as connection:
        acts = acts_after(connection, 0, 10)
    assert [(act.actor, act.action, act.details["statistic"]) for act in acts] == [
        ("memory", "drift", drift.statistic) for drift in found
    ]
    assert {act.subject for act in acts} <= {"camera", "all sources"}

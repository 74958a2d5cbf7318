import json
from datetime import UTC, datetime

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import func, insert, select

from deploy.layouts import all_topics
from detector.release.manifest import FEATURE_VERSION
from ingest.records import Decoded
from ingest.settings import IngestSettings
from memory.clusters.clustering import renew
from memory.clusters.review import list_clusters, members_of
from memory.features import WIDTH
from memory.index.index import Index
from memory.labels import label
from memory.metrics import Fill as FillCollector
from memory.records import ALARMS, Raised, ShiftAlarm
from memory.schema import MAX_SOURCE_CHARS, alarms, drift_alarms
from memory.shift import alarms as module
from memory.shift.alarms import Seen, put_announced, put_raised, to_announce, to_shelve
from memory.shift.shelving import ALARM_TYPE, DRAWS, Reread, cohesion, event, plan_like, shelve
from updater.schedule import suspects_labelled_since

AT = datetime(2026, 1, 2, tzinfo=UTC)
RAISED = Raised(at=AT, source="door-7", release="a" * 64, items=150, since=20, log_e=6.5, log_limit=4.2)

DATABASES = ("sqlite_url", "postgresql_url")


@pytest.fixture
def index():
    return Index(FEATURE_VERSION, WIDTH)


def seen(offset):
    return Seen(topic="media", partition=0, offset=offset, digest=f"{offset:064x}", score=2.0, p=0.01)


def reread(item, *, kind):
    """Suspects of a kind lie close together, away from the others."""
    rng = np.random.default_rng(item.offset)
    features = (rng.normal(size=WIDTH) * (0.3 if kind else 1) + kind).astype(np.float32)
    crops = rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    return Reread(item, Decoded("image", "PNG", 32, 32, 1, crops, ()), features)


SUSPECTS, OTHERS = [seen(n) for n in range(10, 20)], [seen(n) for n in range(100, 130)]
FOUND = {s: reread(s, kind=3) for s in SUSPECTS} | {s: reread(s, kind=0) for s in OTHERS}


@pytest.fixture
def alarm(store):
    with store.write_unversioned() as connection:
        put_raised(connection, RAISED, SUSPECTS, OTHERS)
    with store.read() as connection:
        (found,) = to_shelve(connection)
    return found


def test_suspects_become_the_first_cluster_of_the_list_with_their_evidence(store, crops, index, alarm):
    shelve(alarm, FOUND, store, crops, index)
    (one,) = list_clusters(store)
    assert set(one.members) == {f"media-0-{n}" for n in range(10, 20)}
    assert one.alarm.cluster == one.id
    assert (one.alarm.source, one.alarm.since, one.alarm.suspects, one.alarm.missing) == ("door-7", 20, 10, 0)
    assert one.alarm.cohesion is not None
    assert one.alarm.cohesion <= 0.01
    members = members_of(store, one.id)
    assert {(e.source, e.release, e.unknown_score, e.shelf) for e in members} == {
        ("door-7", "a" * 64, 2.0, "unknown")
    }
    assert all(e.crops_digest is not None and crops.holds(e.crops_digest) for e in members)


def test_what_is_not_of_one_kind_is_told_so(store, crops, index, alarm):
    shelve(alarm, {s: reread(s, kind=0) for s in [*SUSPECTS, *OTHERS]}, store, crops, index)
    (one,) = list_clusters(store)
    assert one.alarm.cohesion is not None
    assert one.alarm.cohesion > 0.05


def test_suspects_are_in_no_computed_cluster_and_a_computation_leaves_theirs_alone(
    store, crops, index, settings, alarm, make, monkeypatch
):
    shelve(alarm, FOUND, store, crops, index)
    (before,) = list_clusters(store)
    renew(store, settings)
    monkeypatch.setattr(
        "memory.clusters.clustering.now_ms", lambda: 10**14
    )  # long after clusters are forgotten
    renew(store, settings.model_copy(update={"min_cluster_items": 9}))
    assert list_clusters(store) == [before]


@pytest.mark.slow
def test_missing_media_is_told_and_without_any_suspect_there_is_no_cluster(store, crops, index, alarm):
    shelve(alarm, {}, store, crops, index)
    assert list_clusters(store) == []
    with store.read() as connection:
        assert to_shelve(connection) == []
        (told,) = to_announce(connection)
    assert (told.missing, told.cluster, told.cohesion) == (10, None, None)


def test_an_alarm_is_shelved_once_whoever_is_second(store, crops, index, alarm):
    shelve(alarm, FOUND, store, crops, index)
    (before,) = list_clusters(store)
    shelve(alarm, {}, store, crops, Index(FEATURE_VERSION, WIDTH))
    assert list_clusters(store) == [before]


def test_an_alarm_waits_until_every_suspect_has_a_label_and_then_updates(store, crops, index, alarm):
    registry = CollectorRegistry()
    registry.register(FillCollector(store))

    def waiting():
        (line,) = (
            line
            for line in generate_latest(registry).decode().splitlines()
            if line.startswith("forgewatch_memory_shift_alarms_waiting")
        )
        return line.split()[1]

    assert waiting() == "0.0"
    shelve(alarm, FOUND, store, crops, index)
    (one,) = list_clusters(store)
    first = label(store, one.members[:4], "gan", "ada")
    assert waiting() == "1.0"
    assert suspects_labelled_since(store, 0) == 4
    assert suspects_labelled_since(store, first) == 0
    label(store, one.members[4:], "ignore", "ada")
    assert waiting() == "0.0"
    assert suspects_labelled_since(store, first) == 0  # what is ignored teaches nothing


def test_an_alarm_is_a_cloud_event_and_announced_once_that_is_on_record(store, crops, index, alarm):
    shelve(alarm, FOUND, store, crops, index)
    with store.read() as connection:
        (told,) = to_announce(connection)
    record = event(told, "alarms")
    headers = dict(record.headers)
    assert (record.topic, record.key) == ("alarms", b"door-7")
    assert headers["ce_type"] == ALARM_TYPE.encode()
    assert headers["ce_id"] == f"shift-{told.id}".encode()
    assert ShiftAlarm.model_validate(json.loads(record.value or b"")) == told
    with store.write_unversioned() as connection:
        put_announced(connection, [told.id])
    with store.read() as connection:
        assert to_announce(connection) == []


def test_the_longest_alarm_fits_into_its_topic():
    # The most that is kept of a source, of characters that JSON takes six bytes for; the longest numbers.
    source = "\x01" * MAX_SOURCE_CHARS
    most = dict.fromkeys(("items", "since", "suspects", "missing"), 2**62)
    alarm = ShiftAlarm(
        id=2**62, cohesion=1 / 3, cluster="c" * 64, **{**dict(RAISED), **most, "source": source}
    )
    record = event(alarm, "a" * 249)
    written = [record.key or b"", record.value or b"", *(name.encode() + v for name, v in record.headers)]
    assert sum(map(len, written)) > 6 * MAX_SOURCE_CHARS
    ingest = IngestSettings()
    (topic,) = [t for t in all_topics(ingest, 1) if t.name == ingest.topic(ALARMS)]
    assert sum(map(len, written)) <= topic.max_record_bytes < ingest.max_media_bytes


def test_media_is_cut_as_the_newest_exemplar_was(store, crops, index, settings, alarm):
    assert plan_like(store, crops, settings).crops.crop_px == 128
    shelve(alarm, FOUND, store, crops, index)
    plan = plan_like(store, crops, settings)
    assert (plan.crops.crop_px, plan.pictures) == (32, {})


F = 20


def drawn(rng, count, spread=1.0):
    return (rng.normal(size=(count, F)) * spread).astype(np.float32)


def test_suspects_of_one_kind_cohere_and_as_many_reals_do_not():
    rng = np.random.default_rng(0)
    others = drawn(rng, 40)
    kind = drawn(rng, 1) + drawn(rng, 10)  # as far apart as the others are, and displaced alike
    assert cohesion(kind, others, 1) == pytest.approx(1 / (1 + DRAWS))
    scattered = cohesion(drawn(rng, 10, 2.0), others, 1)
    assert scattered is not None
    assert scattered > 0.1


def test_its_p_value_is_small_no_more_often_than_it_says():
    rng = np.random.default_rng(1)
    found = [cohesion(drawn(rng, 8), drawn(rng, 20), seed) for seed in range(120)]
    small = np.mean([p is not None and p <= 0.1 for p in found])
    # 120 draws of a share of 0.1: three standard deviations are 0.08.
    assert small <= 0.18
    assert np.mean([p is not None and p <= 0.5 for p in found]) > 0.3


@pytest.mark.parametrize(("suspects", "others"), [(0, 30), (2, 30), (5, 4)])
def test_too_few_say_nothing(suspects, others):
    rng = np.random.default_rng(2)
    assert cohesion(drawn(rng, suspects), drawn(rng, others), 1) is None


def test_all_alike_is_no_cohesion():
    assert cohesion(np.ones((5, F), np.float32), np.ones((9, F), np.float32), 1) == 1


# A producer that shifts for ever raises alarms for ever, and the database keeps few of them.
KINDS = {"shift": alarms, "drift": drift_alarms}


def raised(table, announced):
    texts = {"found": "{}"} if table is drift_alarms else {"raised": "{}", "suspects": "[]", "others": "[]"}
    return {**texts, "announced": announced}


@pytest.mark.parametrize("most", [module.MOST_ALARMS, 10**6])
@pytest.mark.parametrize("kind", KINDS)
def test_the_newest_thousand_alarms_are_kept_and_what_waits_to_be_told(store, monkeypatch, kind, most):
    """With the negative control: without the bound all of them are."""
    table = KINDS[kind]
    monkeypatch.setattr(module, "MOST_ALARMS", most)
    with store.write_unversioned() as connection:
        connection.execute(insert(table), [raised(table, announced=number != 3) for number in range(1500)])
        newest = connection.scalar(select(func.max(table.c.id)))
        put_announced(connection, [newest], table)
        kept = connection.scalars(select(table.c.id).order_by(table.c.id)).all()
        waiting = connection.scalars(select(table.c.id).where(table.c.announced.is_(False))).all()
    assert len(waiting) == 1
    if most == 1000:
        assert kept == [*waiting, *range(newest - 999, newest + 1)]
    else:
        assert len(kept) == 1500

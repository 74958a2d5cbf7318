"""Taking back on a real broker and in a real sandbox, with a model that answers in this process."""

import multiprocessing
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from streams import await_that, reader_of
from taken_back import CLAIMED, GONE, ITEMS, retract_until_killed, send

from deploy.group_lag import group_lag
from deploy.releases.ledger import Ledger, Move
from deploy.releases.standing import replay
from deploy.rollout_records import Turn
from deploy.rollouts.retractions import Retractions
from detector import retraction as retraction_module
from detector.reading import WITHDRAWAL_TYPE, group_of
from detector.records import RETRACTIONS, SIGNATURE, VERDICTS, Outcome, Retraction, Verdict, Withdrawal, sign
from ingest.kafka import sink as sink_module
from ingest.kafka.access import kafka_options

pytestmark = pytest.mark.system


def delete_from_topic(scene):
    admin = KafkaAdminClient(bootstrap_servers=scene.ingest.bootstrap_servers)
    admin.delete_records({TopicPartition(scene.ingest.media_topic, 0): GONE})
    admin.close()


def break_transactions(monkeypatch, where):
    """Break transactions, by their number, once all is written and before the commit."""
    real, numbers = sink_module._transaction, []

    def transaction(producer, records, *rest):
        numbers.append(len(records))
        if not where(len(numbers)):
            return real(producer, records, *rest)
        producer.begin_transaction()
        for record in records:
            producer.send(record.topic, value=record.value, key=record.key, headers=list(record.headers))
        producer.flush()
        raise OSError("the line broke before the commit")

    monkeypatch.setattr(sink_module, "_transaction", transaction)
    return numbers


def test_each_verdict_has_one_outcome_and_correction_though_transactions_break(scene, tmp_path, monkeypatch):
    originals = {record.key: record for record in scene.verdicts()}
    before = {key: Verdict.model_validate_json(record.value) for key, record in originals.items()}
    delete_from_topic(scene)
    for file in (tmp_path / "claims").iterdir():
        file.unlink()
    scene.roll_back()
    monkeypatch.setattr(retraction_module, "_RETRY_INTERVAL_S", 0.1)
    monkeypatch.setattr(retraction_module, "_MOST_ITEMS", 4)
    broken = break_transactions(monkeypatch, lambda number: number in (2, 5))
    with scene.retracting():
        await_that(lambda: len(scene.outcomes()) >= ITEMS)
    assert len(broken) > 5
    outcomes = scene.outcomes()
    assert Counter(each.id for each in outcomes) == Counter(verdict.id for verdict in before.values())
    assert {(each.retraction, each.release) for each in outcomes} == {(2, scene.bad.digest)}
    by_outcome = Counter(each.outcome for each in outcomes)
    assert by_outcome["withdrawn"] == GONE + CLAIMED
    assert by_outcome["corrected"]
    assert by_outcome["same"]

    old = {(record.partition, record.offset) for record in originals.values()}
    written = [record for record in scene.verdicts() if (record.partition, record.offset) not in old]
    corrected = {each.id: each for each in outcomes if each.outcome == "corrected"}
    withdrawn = {each.id for each in outcomes if each.outcome == "withdrawn"}
    assert len(written) == len(corrected) + len(withdrawn)
    for record in written:
        headers = dict(record.headers)
        assert record.partition == originals[record.key].partition  # so that the later one is read later
        if headers["ce_type"] == WITHDRAWAL_TYPE.encode():
            withdrawal = Withdrawal.model_validate_json(record.value)
            withdrawn.remove(withdrawal.id)
            assert withdrawal.item == before[record.key].item
            continue
        after, was = Verdict.model_validate_json(record.value), before[record.key]
        assert (after.id, after.item) == (was.id, was.item)
        assert (after.release, after.supersedes) == (scene.good.digest, scene.bad.digest)
        assert headers["ce_source"] == f"/forgewatch/releases/{scene.good.digest}".encode()
        assert (after.label, after.family) != (was.label, was.family)
        assert (corrected.pop(after.id).after, was.label) == (after.label, "unknown")
    assert not corrected
    assert not withdrawn


@pytest.mark.bar("B1")
def test_where_offsets_are_committed_apart_from_the_outcomes_these_double(scene, monkeypatch):
    scene.roll_back()
    monkeypatch.setattr(retraction_module, "_RETRY_INTERVAL_S", 0.1)
    monkeypatch.setattr(retraction_module, "_MOST_ITEMS", 4)
    real, numbers = sink_module._transaction, []

    def apart(producer, records, offsets, membership):
        numbers.append(len(records))
        real(producer, records, {}, None)
        if len(numbers) == 3:
            raise OSError("the line broke between both")
        return real(producer, [], offsets, membership)

    monkeypatch.setattr(sink_module, "_transaction", apart)
    with scene.retracting():
        await_that(lambda: len({each.id for each in scene.outcomes()}) >= ITEMS)
    assert max(Counter(each.id for each in scene.outcomes()).values()) == 2


def test_what_is_answered_late_is_taken_back_too_and_what_is_forged_is_not(scene, tmp_path):
    first = scene.verdicts()[0]
    body = Verdict.model_validate_json(first.value)
    scene.roll_back()
    with scene.retracting():
        await_that(lambda: len(scene.outcomes()) >= ITEMS)
        producer = KafkaProducer(bootstrap_servers=scene.ingest.bootstrap_servers)
        for forged in (
            b"{",
            body.model_copy(update={"release": scene.good.digest}).model_dump_json().encode(),
            body.model_copy(update={"id": "elsewhere-0-0"}).model_dump_json().encode(),
        ):
            producer.send(first.topic, forged, first.key, first.headers, partition=first.partition).get(30)
        producer.close()
        send(scene.ingest, range(ITEMS, ITEMS + 4), tmp_path)
        scene.answer(4)
        await_that(lambda: len(scene.outcomes()) >= ITEMS + 4)
    assert set(Counter(each.id for each in scene.outcomes()).values()) == {1}


def test_a_number_that_a_restored_ledger_gives_to_another_release_is_read_from_its_own_beginning():
    first = Retraction(number=7, release="a" * 64, since_ms=5)
    assert group_of("detector", first) == "detector-retraction-7-aaaaaaaaaaaa"
    assert group_of("detector", first.model_copy(update={"release": "b" * 64})) != group_of("detector", first)


# A retraction ends by a real ledger and broker: outcomes are counted, and `retracted` is written once.
KEY = b"the detector's token"


@pytest.fixture
def ledger(scene, candidate_of, tmp_path):
    """The bad release went live after the good one, and was rolled back."""
    opened = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    for artifact in (scene.good, scene.bad):
        go_live(opened, candidate_of(artifact))
    roll_back(opened, scene)
    yield opened
    opened.close()


def go_live(ledger, candidate):
    about = (candidate.digest, candidate.evaluation_digest)
    proposed = Move("updater", "propose", *about, candidate=candidate)
    ledger.append(lambda _: [proposed, Move("ada", "approve", *about), Move("ada", "promote", *about)])


def roll_back(ledger, scene):
    about = (scene.bad.digest, scene.bad.manifest.files["evaluation.json"])
    turn = Turn(retract=True)
    ledger.append(lambda _: [Move("ada", "rollback", *about, reason="odd", rollout=turn)])
    scene.rollout = replay(ledger.events()).rollout(ledger.id)


def ends(ledger):
    return [event.move.rollout for event in ledger.events() if event.move.action == "retracted"]


def test_the_end_is_written_once_with_each_outcome_counted_once(scene, ledger, tmp_path):
    ingest = scene.ingest
    publisher = SimpleNamespace(problem=None, wake=lambda: None)

    def lag(retraction):
        group = group_of(scene.settings.group_id, retraction)
        return group_lag(kafka_options(ingest), group, ingest.topic(VERDICTS), 10)

    def server(settled_s):
        return Retractions(ledger, publisher, lag, ingest, [KEY], settled_s=settled_s)

    first, second, patient = server(0), server(0), server(600)
    first.tick()
    first.tick()
    assert not ends(ledger), "no worker has read anything"
    (view,) = first.view()
    assert (view.state, sum(view.outcomes.values())) == ("reading", 0)
    with scene.retracting():
        await_that(lambda: len(scene.outcomes()) >= ITEMS)
        producer = KafkaProducer(bootstrap_servers=scene.ingest.bootstrap_servers)
        for record in scene.records(RETRACTIONS)[:3]:  # again, unsigned, and of items that never were
            outcome = Outcome.model_validate_json(record.value)
            media = scene.ingest.media_topic
            other, zeros, forged = (
                outcome.model_copy(update={"id": id}).model_dump_json().encode()
                for id in (f"{outcome.id}000000", f"{media}-0-00", f"{media}-1-0")
            )
            signed = [(value, [(SIGNATURE, sign(KEY, value))]) for value in (other, zeros)]
            for value, headers in ((record.value, record.headers), *signed, (forged, [])):
                producer.send(record.topic, value, record.key, headers).get(30)
        producer.close()

        def patient_has_read():
            patient.tick()
            return patient.view()[0].state == "settling"

        await_that(patient_has_read)
        send(scene.ingest, range(ITEMS, ITEMS + 4), tmp_path)
        scene.answer(4)  # by a worker that has not followed

        def followed():
            patient.tick()
            return sum(patient.view()[0].outcomes.values()) == ITEMS + 4

        await_that(followed)
        patient.tick()
        assert not ends(ledger), "it was not quiet for long enough"

        def over():
            first.tick()
            return bool(ends(ledger))

        await_that(over)
    second.tick()
    patient.tick()
    (turn,) = ends(ledger)
    first_words = {each.id: each.outcome for each in reversed(scene.outcomes())}
    kinds = [kind for id, kind in first_words.items() if not id.endswith("00")]
    assert turn.outcomes == {kind: kinds.count(kind) for kind in ("same", "corrected", "withdrawn")}
    assert sum(turn.outcomes.values()) == ITEMS + 4
    assert replay(ledger.events()).retractions == ()
    (view,) = second.view()
    assert (view.state, view.outcomes) == ("done", turn.outcomes)
    for each in (first, second, patient):
        each.close()


# Workers are killed while they take verdicts back, beside a stream that goes on.
KILLS = 5


class Outcomes:
    """Every outcome that is committed, by its id, each as often as it came."""

    def __init__(self, scene):
        topic = scene.ingest.topic(RETRACTIONS)
        self._reader = reader_of(scene.ingest.bootstrap_servers, topic)
        self.counted = Counter[str]()
        self.kinds = Counter[str]()

    def close(self):
        self._reader.close()

    def read(self):
        for records in self._reader.poll(timeout_ms=200).values():
            for record in records:
                outcome = Outcome.model_validate_json(record.value)
                self.counted[outcome.id] += 1
                self.kinds[outcome.outcome] += 1
        return len(self.counted)


def started(scene):
    about = (scene.ingest, scene.settings, scene.rollout, scene.bad.folder, scene.good.folder)
    process = multiprocessing.get_context("spawn").Process(target=retract_until_killed, args=about)
    process.start()
    return process


@pytest.mark.bar("B1")
def test_each_verdict_has_one_outcome_though_workers_are_killed_amid_the_stream(scene, tmp_path, bar):
    count = bar.times(120, 10_000)
    send(scene.ingest, range(ITEMS, count), tmp_path)
    scene.answer(count - ITEMS)
    listed = {record.key for record in scene.verdicts()}
    assert len(listed) == count
    scene.roll_back()
    outcomes, began = Outcomes(scene), time.monotonic()
    stream = threading.Thread(target=scene.answer_on, args=(count // 4, tmp_path))
    stream.start()
    process = started(scene)
    try:
        for kill in range(1, KILLS + 1):
            due = count * kill // (KILLS + 1)
            await_that(lambda due=due: outcomes.read() >= due, 1200)
            process.kill()
            process.join()
            process = started(scene)
        await_that(lambda: outcomes.read() >= count, 1200)
        stream.join(600)
        outcomes.read()
    finally:
        process.kill()
        process.join()
        outcomes.close()
    lost, twice = count - len(outcomes.counted), sum(n > 1 for n in outcomes.counted.values())
    bar.count(KILLS, lost=lost, twice=twice)
    print(f"{count} verdicts, {time.monotonic() - began:.0f} s, outcomes {dict(outcomes.kinds)}")
    assert (lost, twice) == (0, 0)

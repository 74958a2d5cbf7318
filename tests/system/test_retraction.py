"""Taking back on a real broker and in a real sandbox, with a model that answers in this process."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from streams import await_that
from taken_back import CLAIMED, GONE, ITEMS, Scene, send

from detector import retraction as retraction_module
from detector.reading import WITHDRAWAL_TYPE, group_of
from detector.records import Retraction, Verdict, Withdrawal
from ingest.kafka import sink as sink_module

pytestmark = pytest.mark.system


def delete_from_topic(scene: Scene) -> None:
    admin = KafkaAdminClient(bootstrap_servers=scene.ingest.bootstrap_servers)
    admin.delete_records({TopicPartition(scene.ingest.media_topic, 0): GONE})
    admin.close()


def break_transactions(monkeypatch: pytest.MonkeyPatch, where: Callable[[int], bool]) -> list[int]:
    """Break transactions, by their number, once all is written and before the commit."""
    real, numbers = sink_module._transaction, []

    def transaction(producer: Any, records: Any, *rest: Any) -> float:
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


def test_each_verdict_of_the_release_has_one_outcome_and_its_correction_though_transactions_break(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_where_offsets_are_committed_apart_from_the_outcomes_these_double(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.roll_back()
    monkeypatch.setattr(retraction_module, "_RETRY_INTERVAL_S", 0.1)
    monkeypatch.setattr(retraction_module, "_MOST_ITEMS", 4)
    real, numbers = sink_module._transaction, []

    def apart(producer: Any, records: Any, offsets: Any, membership: Any) -> float:
        numbers.append(len(records))
        real(producer, records, {}, None)
        if len(numbers) == 3:
            raise OSError("the line broke between both")
        return real(producer, [], offsets, membership)

    monkeypatch.setattr(sink_module, "_transaction", apart)
    with scene.retracting():
        await_that(lambda: len({each.id for each in scene.outcomes()}) >= ITEMS)
    assert max(Counter(each.id for each in scene.outcomes()).values()) == 2


def test_what_is_answered_late_is_taken_back_too_and_what_is_forged_is_not(
    scene: Scene, tmp_path: Path
) -> None:
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


def test_a_number_that_a_restored_ledger_gives_to_another_release_is_read_from_its_own_beginning() -> None:
    first = Retraction(number=7, release="a" * 64, since_ms=5)
    assert group_of("detector", first) == "detector-retraction-7-aaaaaaaaaaaa"
    assert group_of("detector", first.model_copy(update={"release": "b" * 64})) != group_of("detector", first)

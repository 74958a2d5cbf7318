"""Taking back on a real broker and in a real sandbox, with a model that answers in this process."""

import io
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from PIL import Image
from streams import all_of, await_that

from deploy.layouts import all_topics
from detector import retraction as retraction_module
from detector.corrections import WITHDRAWAL_TYPE
from detector.records import RETRACTIONS, VERDICTS, Outcome, Retraction, Rollout, Verdict, Withdrawal
from detector.release.artifact import Artifact, seal
from detector.release.tensors import ModelOutput, Request
from detector.retraction import Retracting, group_of
from detector.serving.rollout import Route
from detector.serving.session import open_session
from detector.settings import DetectorSettings
from detector.worker import Worker
from ingest.kafka import sink as sink_module
from ingest.kafka.sink import TransactionalSink
from ingest.kafka.source import Source
from ingest.kafka.topics import ensure_topics
from ingest.process.health import Heartbeat
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system

ITEMS, GONE, CLAIMED = 24, 3, 2
"""Of the items the first of partition 0 will be deleted from their topic, and others' files from the disk."""


class Model:
    """TorchServe's place, for one caller at a time."""

    def __init__(self, artifact: Artifact) -> None:
        self._session, self._lock = open_session(artifact, threads=1), threading.Lock()

    def predict(self, artifact: Artifact, request: Request) -> ModelOutput:
        with self._lock:
            return self._session.score(request)


class Scene:
    """A stream whose items were answered by the release that is then taken back."""

    good: Artifact

    def __init__(self, ingest: IngestSettings, sandbox: Sandbox, bad: Artifact) -> None:
        self.ingest, self.bad = ingest, bad
        self._sandbox, self._model = sandbox, Model(bad)
        self.settings = DetectorSettings(group_id=uuid.uuid4().hex)
        self.rollout: Any = None

    def serving(self, artifact: Artifact) -> Any:
        return SimpleNamespace(
            route=Route(artifact), tick=lambda: None, rollout=self.rollout, heal=lambda artifact: None
        )

    def answer(self, items: int) -> None:
        """Have the bad release answer so many items more."""
        model: Any = self._model
        with (
            TransactionalSink(self.ingest, f"worker-{uuid.uuid4().hex}") as sink,
            Source(self.ingest, self.settings.group_id) as source,
        ):
            worker = Worker(
                *(source, self._sandbox, model, self.serving(self.bad), sink, self.ingest, self.settings),
                *(threading.Event(), Heartbeat(60)),
            )
            thread = threading.Thread(target=worker.run)
            before = len(self.verdicts())
            thread.start()
            await_that(lambda: len(self.verdicts()) >= before + items)
            worker.stop.set()
            thread.join(30)

    def roll_back(self, number: int = 2) -> Retraction:
        back = Retraction(number=number, release=self.bad.digest, since_ms=0)
        self.rollout = Rollout(
            ledger="0" * 32, epoch=0, sequence=number, stable=self.good.digest, retractions=(back,)
        )
        return back

    @contextmanager
    def retracting(self) -> Iterator[Retracting]:
        model: Any = self._model
        serving = self.serving(self.good)
        idle = threading.Event()
        idle.set()
        slot = f"slot-{self.settings.group_id}"
        with Retracting(
            *(self._sandbox, model, serving, self.ingest, self.settings, slot, idle, threading.Event())
        ) as retracting:
            yield retracting

    def records(self, kind: str) -> list[Any]:
        return all_of(self.ingest.bootstrap_servers, self.ingest.topic(kind))

    def verdicts(self) -> list[Any]:
        return self.records(VERDICTS)

    def outcomes(self) -> list[Outcome]:
        return [Outcome.model_validate_json(record.value) for record in self.records(RETRACTIONS)]


def picture_of(seed: int) -> bytes:
    file, rng = io.BytesIO(), np.random.default_rng(seed)
    Image.fromarray(rng.integers(0, 256, (72, 80, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def send(ingest: IngestSettings, seeds: range, claims: Path) -> None:
    """Send pictures, keyed, over both partitions; some are files that a record refers to."""
    producer = KafkaProducer(bootstrap_servers=ingest.bootstrap_servers)
    for seed in seeds:
        picture = picture_of(seed)
        headers, value = None, picture
        if ITEMS - CLAIMED <= seed < ITEMS:
            (claims / f"{seed}.png").write_bytes(picture)
            attributes = {"ce_specversion": "1.0", "ce_id": str(seed), "ce_source": "camera", "ce_type": "t"}
            attributes |= {"ce_dataref": (claims / f"{seed}.png").as_uri(), "content-type": "image/png"}
            headers, value = [(name, text.encode()) for name, text in attributes.items()], b""
        producer.send(ingest.media_topic, value, f"key {seed}".encode(), headers, partition=seed % 2).get(30)
    producer.close()


@pytest.fixture
def scene(settings: IngestSettings, untrained_artifact: Artifact, tmp_path: Path) -> Iterator[Scene]:
    ensure_topics(settings, all_topics(settings, 2))
    with Sandbox(settings) as sandbox:
        made = Scene(settings, sandbox, gated(untrained_artifact, -99.0, tmp_path / "bad"))
        send(settings, range(ITEMS), tmp_path / "claims")
        made.answer(ITEMS)
        scores = [Verdict.model_validate_json(record.value).unknown_score for record in made.verdicts()]
        # Half of what the one calls unknown is so to the other.
        made.good = gated(untrained_artifact, float(np.median(scores)), tmp_path / "good")
        yield made


def gated(artifact: Artifact, unknown_threshold: float, folder: Path) -> Artifact:
    shutil.copytree(artifact.folder, folder)
    gate = artifact.manifest.gate.model_copy(update={"unknown_threshold": unknown_threshold})
    return seal(folder, artifact.manifest.model_copy(update={"gate": gate}))


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

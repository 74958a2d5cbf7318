"""A whole stack whose live release calls everything real, pictures that stream through it, challengers."""

import gc
import io
import itertools
import os
import shutil
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from PIL import Image
from streams import all_of, await_that

from deploy.client.connection import ServerUnavailableError
from deploy.client.http import Client
from deploy.local.stack import Stack
from deploy.local.supervisor import Kept
from deploy.releases.ledger import Event, Ledger
from deploy.releases.standing import Standing, fold
from deploy.rollout_records import RolloutView, Trial
from deploy.settings import DeploySettings
from detector.records import COMPARISONS, VERDICTS, Comparison, Verdict
from detector.release.artifact import EVALUATION, Artifact, seal
from ingest.kafka.access import kafka_options
from ingest.settings import IngestSettings
from updater.deploy_client import DeployClient
from updater.records import Candidate, Evaluation
from updater.settings import UpdaterSettings

_A_SECOND, _MOST_OPEN = 15, 100
"""Pictures a second, and so many at most without an answer."""


class Stream:
    """Pictures at a steady rate, each of a source of its own, and when what of each could be read.

    Times are those of time.monotonic(), by the item's id.
    """

    def __init__(self, ingest: IngestSettings) -> None:
        self.sent_s: dict[str, float] = {}
        self.answered_s: dict[str, float] = {}
        self.scored_by_both_s: dict[str, float] = {}
        self.answered_by_challenger_s: dict[str, float] = {}
        self._ingest = ingest
        self._stop = threading.Event()
        work = (self._send, self._read)
        self._threads = [threading.Thread(target=each, name=each.__name__, daemon=True) for each in work]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Send no more; what was sent is in its topic."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()  # to which kafka-python leaves the sockets of connections that were refused

    def since(self, began_s: float, what: dict[str, float]) -> bool:
        """Whether there is such a time of an item that was sent since then."""
        return any(self.sent_s.get(id, 0.0) > began_s for id in list(what))

    def is_answered(self, until_s: float) -> bool:
        """Whether each item that was sent until then has its answer."""
        return all(id in self.answered_s for id, at in list(self.sent_s.items()) if at <= until_s)

    def worst_s(self, began_s: float, until_s: float) -> float:
        """The longest wait for an answer of the items that were sent in that time, seconds."""
        answered = self.sent_s.keys() & self.answered_s.keys()
        sent = [id for id in answered if began_s <= self.sent_s[id] <= until_s]
        return max(self.answered_s[id] - self.sent_s[id] for id in sent)

    def _send(self) -> None:
        producer = KafkaProducer(**kafka_options(self._ingest), acks="all")
        for number in itertools.count():
            while len(self.sent_s.keys() - self.answered_s.keys()) > _MOST_OPEN and not self._stop.is_set():
                self._stop.wait(0.05)
            if self._stop.wait(1 / _A_SECOND):
                break
            handed_s = time.monotonic()
            with suppress(KafkaError):
                producer.send(
                    self._ingest.media_topic, picture(number), f"source {number}".encode()
                ).add_callback(self._sent, handed_s)
        producer.flush()
        producer.close()

    def _sent(self, handed_s: float, at: Any) -> None:
        self.sent_s[f"{at.topic}-{at.partition}-{at.offset}"] = handed_s

    def _read(self) -> None:
        verdicts, comparisons = map(self._ingest.topic, (VERDICTS, COMPARISONS))
        reader = KafkaConsumer(
            verdicts,
            comparisons,
            **kafka_options(self._ingest),
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        while not self._stop.is_set():
            with suppress(KafkaError):  # the broker was killed
                for at, records in reader.poll(timeout_ms=50).items():
                    for record in records:
                        self._take(record.value, is_verdict=at.topic == verdicts)
        reader.close()

    def _take(self, value: bytes, *, is_verdict: bool) -> None:
        if is_verdict:
            self.answered_s.setdefault(Verdict.model_validate_json(value).id, time.monotonic())
        elif (comparison := Comparison.model_validate_json(value)).challenger.error is None:
            self.scored_by_both_s.setdefault(comparison.id, time.monotonic())
            if comparison.answered == "challenger":
                self.answered_by_challenger_s.setdefault(comparison.id, time.monotonic())


def picture(number: int) -> bytes:
    """A picture of bright noise, unlike a probe's crops, whose mean is 127."""
    file, rng = io.BytesIO(), np.random.default_rng(number)
    Image.fromarray(rng.integers(128, 256, (72, 80, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


class Trials:
    """The stack, its live release, and what a person and a reader of its topics and ledger do."""

    def __init__(
        self,
        stack: Stack,
        make_evaluation: Callable[..., Evaluation],
        candidate_of: Callable[[Artifact], Candidate],
    ) -> None:
        self.stack = stack
        self.ingest = IngestSettings(bootstrap_servers=stack.settings["FORGEWATCH_INGEST_BOOTSTRAP_SERVERS"])
        self._make_evaluation, self._candidate_of = make_evaluation, candidate_of
        self._url = stack.settings["FORGEWATCH_DEPLOY_URL"]
        self._ledger = Ledger(stack.settings["FORGEWATCH_DEPLOY_DATABASE_URL"])

    def approve(self, artifact: Artifact, plan: str) -> None:
        """Propose a release as the updater does, and approve it as a person does."""
        with DeployClient(UpdaterSettings(deploy_url=self._url)) as deploy:
            deploy.put(artifact)
            deploy.propose(self._candidate_of(artifact))
        with self.api() as api:
            api.approve(api.release(artifact.digest), {}, plan=plan)

    def api(self) -> Client:
        return Client(DeploySettings(url=self._url), "tester")

    def challenger(self, of: Artifact, folder: Path, change: Callable[[Path], dict[str, Any]]) -> Artifact:
        """A copy of the live release whose files and manifest are changed: `change` returns what of that."""
        shutil.copytree(of.folder, folder)
        classes = of.manifest.classes
        evaluation = self._make_evaluation(classes, of.digest, classes)
        (folder / EVALUATION).write_text(evaluation.model_dump_json())
        return seal(folder, of.manifest.model_copy(update={"parent": of.digest, **change(folder)}))

    def events(self) -> tuple[Event, ...]:
        return tuple(self._ledger.events())

    def standing(self) -> Standing:
        return fold(self.events())

    def trial(self) -> Trial:
        """Where the rollout stands by the ledger; it must go on."""
        trial = self.standing().trial
        assert trial is not None, [(each.move.action, each.move.reason) for each in self.events()[-2:]]
        return trial

    def view(self) -> RolloutView | None:
        """What the server says of the rollout; None while it is away."""
        try:
            with self.api() as api:
                return api.rollouts.view()
        except ServerUnavailableError:
            return None

    def state(self, release: Artifact) -> str:
        return self.standing().releases[release.digest].state

    def kept(self, name: str) -> Kept:
        return next(kept for kept in self.stack.supervisor.kept() if kept.name == name)

    def kill(self, name: str) -> None:
        os.kill(self.kept(name).pid, signal.SIGKILL)

    def records(self, topic: str) -> list[Any]:
        return all_of(self.ingest.bootstrap_servers, topic)

    def verdicts(self) -> list[Verdict]:
        return [Verdict.model_validate_json(each.value) for each in self.records(self.ingest.topic(VERDICTS))]

    def comparisons(self) -> list[Comparison]:
        topic = self.ingest.topic(COMPARISONS)
        return [Comparison.model_validate_json(each.value) for each in self.records(topic)]

    def answers(self) -> Counter[int]:
        """How many items have no verdict, one, and more; all of them, once the stream has ended."""
        topic = self.ingest.media_topic
        media = [f"{topic}-{each.partition}-{each.offset}" for each in self.records(topic)]
        with suppress(AssertionError):  # what is lost by then is counted
            await_that(lambda: len({each.id for each in self.verdicts()}) >= len(media), 120)
        counts = Counter(verdict.id for verdict in self.verdicts())
        assert counts.keys() <= set(media)
        return Counter(counts[id] for id in media)


def answer_by_itself(broker: str, media: str, answers: str) -> None:
    """A consumer as they mostly are: it answers each item, and commits its offsets now and then."""
    producer = KafkaProducer(bootstrap_servers=broker)
    told: dict[str, Any] = {"bootstrap_servers": broker, "group_id": "by itself", "session_timeout_ms": 6000}
    told["auto_commit_interval_ms"] = 60_000
    for item in KafkaConsumer(media, auto_offset_reset="earliest", **told):
        producer.send(answers, f"{item.partition}-{item.offset}".encode()).get(30)


@pytest.fixture(scope="module")
def plan_tuning() -> dict[str, str]:
    """Further settings of the stack; a module gives its own."""
    return {}


@pytest.fixture(scope="module")
def trials(
    tmp_path_factory: pytest.TempPathFactory,
    kafka_cache: Path,
    plan_tuning: dict[str, str],
    make_evaluation: Callable[..., Evaluation],
    candidate_of: Callable[[Artifact], Candidate],
) -> Iterator[Trials]:
    """A stack without memory and updater, which a rollout does without."""
    tuning = {"FORGEWATCH_DETECTOR_ROLLBACK_WINDOW_S": "1", **plan_tuning}
    with Stack(tmp_path_factory.mktemp("stack"), cache=kafka_cache, tuning=tuning) as stack:
        for name in ("memory", "updater"):
            stack.supervisor.end(name)
        yield Trials(stack, make_evaluation, candidate_of)


@pytest.fixture(scope="module")
def champion(
    trials: Trials, untrained_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> Artifact:
    """The live release, to which everything is real."""
    folder = tmp_path_factory.mktemp("champion") / "artifact"
    shutil.copytree(untrained_artifact.folder, folder)
    gate = untrained_artifact.manifest.gate.model_copy(
        update={"unknown_threshold": 1e5, "fake_threshold": 1.0}
    )
    made = seal(folder, untrained_artifact.manifest.model_copy(update={"gate": gate}))
    trials.approve(made, "now")
    return made


@pytest.fixture
def stream(trials: Trials, champion: Artifact) -> Iterator[Stream]:
    """Pictures that stream through the stack while a test runs; the first has its answer."""
    with Stream(trials.ingest) as streaming:
        await_that(lambda: bool(streaming.answered_s))
        yield streaming

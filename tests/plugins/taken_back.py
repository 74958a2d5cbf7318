"""A stream whose items were answered by a release that is then taken back: a real broker, a real sandbox."""

import io
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kafka import KafkaProducer
from PIL import Image
from streams import all_of, await_that

from deploy.layouts import all_topics
from detector.records import RETRACTIONS, VERDICTS, Outcome, Retraction, Rollout, Verdict
from detector.release.artifact import Artifact, load, seal
from detector.release.tensors import ModelOutput, Request
from detector.retraction import Retracting
from detector.serving.rollout import Route
from detector.serving.session import open_session
from detector.settings import DetectorSettings
from detector.worker import Worker
from ingest.kafka.sink import TransactionalSink
from ingest.kafka.source import Source
from ingest.kafka.topics import ensure_topics
from ingest.process.health import Heartbeat
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings

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
        self.settings = DetectorSettings(group_id=uuid.uuid4().hex, deploy_token="the detector's token")
        self.rollout: Any = None

    def serving(self, artifact: Artifact) -> Any:
        return SimpleNamespace(
            route=Route(artifact),
            tick=lambda: None,
            rollout=self.rollout,
            request_reload=lambda artifact: None,
        )

    def answer_on(self, items: int, claims: Path) -> None:
        """Send so many items more, and have the restored release answer them."""
        send(self.ingest, range(1_000_000, 1_000_000 + items), claims)
        self.answer(items, self.good)

    def answer(self, items: int, by: Artifact | None = None) -> None:
        """Have the bad release, or another, answer so many items more."""
        model: Any = self._model
        with (
            TransactionalSink(self.ingest, f"worker-{uuid.uuid4().hex}") as sink,
            Source(self.ingest, self.settings.group_id) as source,
        ):
            worker = Worker(
                *(source, self._sandbox, model, self.serving(by or self.bad), sink),
                *(self.ingest, self.settings, threading.Event(), Heartbeat(60)),
            )
            thread = threading.Thread(target=worker.run)
            before = self.answered()
            thread.start()
            await_that(lambda: self.answered() >= before + items, 1200)
            worker.stop.set()
            thread.join(30)

    def answered(self) -> int:
        """How many items have a verdict, corrections aside."""
        return sum(b'"supersedes":null' in (record.value or b"") for record in self.verdicts())

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


def retract_until_killed(
    ingest: IngestSettings, settings: DetectorSettings, rollout: Rollout, bad: Path, good: Path
) -> None:
    """What a worker does about retractions, in a process of its own."""
    with Sandbox(ingest) as sandbox:
        scene = Scene(ingest, sandbox, load(bad))
        scene.settings, scene.good, scene.rollout = settings, load(good), rollout
        with scene.retracting():
            threading.Event().wait()

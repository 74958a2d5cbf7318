"""A rollout on a real broker: a worker that scores both releases in this process, and deploy's controller."""

import io
import shutil
import threading
import uuid
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from kafka import KafkaProducer
from PIL import Image
from streams import all_of, await_that, reader_of

from deploy.layouts import all_topics
from deploy.releases.evidence import Evidence
from deploy.releases.ledger import Ledger, Move
from deploy.releases.standing import replay
from deploy.rollout_records import Plan, Turn
from deploy.rollouts.checks import NOT_ALONE
from deploy.rollouts.controller import RolloutController
from detector.records import COMPARISONS, VERDICTS, Comparison, Verdict
from detector.release.artifact import seal
from detector.serving.rollout import Route
from detector.serving.session import open_session
from detector.serving.torchserve import TorchServeUnavailableError
from detector.settings import DetectorSettings
from detector.worker import Worker
from ingest.kafka.sink import TransactionalSink
from ingest.kafka.source import Source
from ingest.kafka.topics import ensure_topics
from ingest.process.health import Heartbeat
from ingest.sandbox.sandbox import Sandbox
from updater.records import Candidate

pytestmark = pytest.mark.system

KEY = b"the detector's token"
FEW, MANY = 60, 1080
"""Items that show a bad challenger, and that let a good one pass."""
EVALUATION = "e" * 64
PLAN = Plan(shadow=1.0, canary=(0.5, 1.0), minutes=0, answers=10_000)
"""Its canary stays at its first step."""


class Model:
    """TorchServe's place. `fault` is what befalls the challenger's answers."""

    def __init__(self, champion):
        self._champion, self._session = champion, open_session(champion, threads=1)
        self._one_at_a_time = threading.Lock()
        self.fault = lambda output: output

    def versions(self, _):
        return {self._champion.version: True}

    def predict(self, artifact, request):
        with self._one_at_a_time:
            output = self._session.score(request)
        return output if artifact.digest == self._champion.digest else self.fault(output)


def unknown(output):
    return {**output, "unknown_score": np.full_like(output["unknown_score"], 1e6)}


def away(output):
    raise TorchServeUnavailableError("its worker died")


class Scene:
    """A champion that calls nothing unknown, and a challenger that scores alike, on trial."""

    def __init__(self, ingest, artifact, folder):
        self.ingest, self.folder, self.sent = ingest, folder, 0
        gate = artifact.manifest.gate.model_copy(update={"unknown_threshold": 1e5, "fake_threshold": 1.1})
        shutil.copytree(artifact.folder, folder / "champion")
        shutil.copytree(artifact.folder, folder / "challenger")
        manifest = artifact.manifest.model_copy(update={"gate": gate})
        self.champion = seal(folder / "champion", manifest)
        manifest = manifest.model_copy(update={"parent": self.champion.digest})
        self.challenger = seal(folder / "challenger", manifest)
        self.model = Model(self.champion)
        self._reader = reader_of(ingest.bootstrap_servers, ingest.topic(VERDICTS))
        self._answered = 0
        self.ledger = Ledger(f"sqlite:///{folder}/ledger.sqlite")
        on_trial = Turn(plan=PLAN)
        self.ledger.append(
            lambda history: [
                *self._live(self.champion, None),
                Move("ada", "promote", self.champion.digest, EVALUATION),
                *self._live(self.challenger, self.champion.digest),
                Move("ada", "begin", self.challenger.digest, EVALUATION, rollout=on_trial),
                Move(
                    "bob", "waive", self.challenger.digest, EVALUATION, "ours", rollout=Turn(check=NOT_ALONE)
                ),
            ]
        )

    def _live(self, artifact, parent):
        classes = artifact.manifest.classes
        candidate = Candidate(
            digest=artifact.digest,
            evaluation_digest=EVALUATION,
            parent=parent,
            update=1,
            classes=classes,
            gates=(),
        )
        about = (artifact.digest, EVALUATION)
        return [Move("ada", "propose", *about, candidate=candidate), Move("ada", "approve", *about)]

    def standing(self):
        return replay(self.ledger.events())

    def state(self):
        return self.standing().releases[self.challenger.digest].state

    def _route(self):
        rollout = self.standing().rollout(self.ledger.id)
        assert rollout is not None
        canary = self.challenger if rollout.canary else None
        shares = rollout.canary_share, rollout.shared_share
        return Route(self.champion, canary, *shares, trial=rollout.trial)

    @contextmanager
    def worker(self):
        """A worker that follows the ledger."""
        serving = SimpleNamespace(route=self._route(), request_reload=lambda _: None)
        serving.tick = lambda: setattr(serving, "route", self._route())
        settings = DetectorSettings(group_id=uuid.uuid4().hex, deploy_token=KEY.decode())
        model = self.model
        with (
            Sandbox(self.ingest) as sandbox,
            TransactionalSink(self.ingest, uuid.uuid4().hex) as sink,
            Source(self.ingest, settings.group_id) as source,
        ):
            beside = (sink, self.ingest, settings, threading.Event(), Heartbeat(60))
            worker = Worker(source, sandbox, model, serving, *beside)
            thread = threading.Thread(target=worker.run)
            thread.start()
            try:
                yield
            finally:
                worker.stop.set()
                thread.join()

    @contextmanager
    def controller(self, key=KEY):
        publisher = SimpleNamespace(wake=lambda: None)
        known = (self.ledger, publisher, self._stored, self.ingest, [key])
        with RolloutController(*known, lambda _: [], lambda: (), interval_s=0.1) as controller:
            yield controller

    @staticmethod
    def _stored(digest):
        return Evidence(digest, EVALUATION, None, (), b"", None)

    def send(self, count):
        """Send pictures, each of a source of its own, as fast as they have their answers."""
        producer = KafkaProducer(bootstrap_servers=self.ingest.bootstrap_servers)
        for number in range(self.sent, self.sent + count):
            file, rng = io.BytesIO(), np.random.default_rng(number)
            Image.fromarray(rng.integers(0, 256, (72, 80, 3), dtype=np.uint8)).save(file, "PNG")
            source = [("source", f"source {number}".encode())]
            producer.send(self.ingest.media_topic, file.getvalue(), headers=source).get(30)
            await_that(lambda number=number: number - self._answers() < FEW)
        producer.close()
        self.sent += count
        await_that(lambda: self._answers() == self.sent)

    def _answers(self):
        self._answered += sum(map(len, self._reader.poll(timeout_ms=20).values()))
        return self._answered

    def verdicts(self):
        return [Verdict.model_validate_json(record.value) for record in self._all(VERDICTS)]

    def comparisons(self):
        found = [Comparison.model_validate_json(record.value) for record in self._all(COMPARISONS)]
        return [each for each in found if each.left_out is None]

    def _all(self, kind):
        return all_of(self.ingest.bootstrap_servers, self.ingest.topic(kind))


@pytest.fixture
def scene(settings, untrained_artifact, tmp_path, monkeypatch):
    # A busy machine is no fault of the challenger's.
    monkeypatch.setattr("detector.challenger._LEAST_PATIENCE_S", 60.0)
    monkeypatch.setattr("detector.worker._MOST_LAG_S", 600.0)
    monkeypatch.setattr("deploy.rollouts.checks.SLOW", 1e9)
    ensure_topics(settings, all_topics(settings, 2))
    made = Scene(settings, untrained_artifact, tmp_path)
    yield made
    made._reader.close()
    made.ledger.close()


@pytest.mark.parametrize("fault", [unknown, away])
def test_a_bad_challenger_is_taken_out_in_shadow_and_no_word_of_it_went_out(scene, fault):
    scene.model.fault = fault
    with scene.worker(), scene.controller() as controller:
        scene.send(FEW)
        await_that(lambda: scene.state() == "rolled back", 60, controller.view)
        scene.send(4)
    assert {verdict.release for verdict in scene.verdicts()} == {scene.champion.digest}
    assert len(scene.comparisons()) == FEW
    assert scene.standing().retractions == ()  # it gave no answer


def test_comparisons_by_another_hand_move_nothing(scene):
    scene.model.fault = unknown
    with scene.worker(), scene.controller(b"another token") as controller:
        scene.send(FEW)
        await_that(lambda: sum(controller.view().left_out.values()) == FEW, 60, controller.view)
        assert scene.state() == "shadow"


def test_a_challenger_that_turns_bad_as_a_canary_is_taken_out_and_taken_back(scene):
    with scene.worker():
        with scene.controller():
            scene.send(MANY // 2)
        # The server was killed: another one reads all of it again, and comes to the same.
        with scene.controller() as controller:
            scene.send(MANY - MANY // 2)
            await_that(lambda: scene.state() == "canary", 120, controller.view)
            scene.send(FEW)
            good = len(scene.comparisons())
            scene.model.fault = unknown
            scene.send(FEW)
            await_that(lambda: scene.state() == "rolled back", 60, lambda: controller.view().checks)
    assert len(scene.comparisons()) - good <= 300
    answered = {each.id for each in scene.comparisons() if each.answered == "challenger"}
    assert answered
    said = {verdict.id for verdict in scene.verdicts() if verdict.release == scene.challenger.digest}
    assert said == answered
    assert [each.release for each in scene.standing().retractions] == [scene.challenger.digest]

"""A whole stack whose live release calls everything real, challengers, and what a person does with them."""

import os
import shutil
import signal
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from media_stream import Stream
from streams import all_of, await_that

from deploy.client.connection import ServerUnavailableError
from deploy.client.http import Client
from deploy.local.stack import Stack
from deploy.releases.ledger import Ledger
from deploy.releases.standing import replay
from deploy.rollouts.checks import NOT_ALONE
from deploy.settings import DeploySettings
from detector.records import COMPARISONS, VERDICTS, Comparison, Verdict
from detector.release.artifact import EVALUATION, seal
from detector.serving.torchserve import TorchServe
from detector.settings import DetectorSettings
from ingest.settings import IngestSettings
from updater.deploy_client import DeployClient
from updater.settings import UpdaterSettings


class Trials:
    """The stack, its live release, and what a person and a reader of its topics and ledger do."""

    def __init__(self, stack, make_evaluation, candidate_of):
        self.stack = stack
        self.ingest = IngestSettings(bootstrap_servers=stack.settings["FORGEWATCH_INGEST_BOOTSTRAP_SERVERS"])
        self._make_evaluation, self._candidate_of = make_evaluation, candidate_of
        self._url = stack.settings["FORGEWATCH_DEPLOY_URL"]
        self._ledger = Ledger(stack.settings["FORGEWATCH_DEPLOY_DATABASE_URL"])

    def approve(self, artifact, plan):
        with DeployClient(UpdaterSettings(deploy_url=self._url)) as deploy:
            deploy.put(artifact)
            deploy.propose(self._candidate_of(artifact))
        with self.api() as api:
            api.approve(api.release(artifact.digest), {}, plan=plan)
            if plan != "now":
                api.rollouts.waive(artifact.digest, NOT_ALONE, "this stack has no memory of its sources")

    def api(self):
        return Client(DeploySettings(url=self._url), "tester")

    def challenger(self, of, folder, change):
        """A copy of the live release whose files and manifest are changed: `change` returns what of that."""
        shutil.copytree(of.folder, folder)
        classes = of.manifest.classes
        evaluation = self._make_evaluation(classes, of.digest, classes)
        (folder / EVALUATION).write_text(evaluation.model_dump_json())
        return seal(folder, of.manifest.model_copy(update={"parent": of.digest, **change(folder)}))

    def next_release(self, of, folder, number=1):
        """A copy of the live release under another digest, which calls nearly all the same."""
        gate = of.manifest.gate
        other = gate.model_copy(update={"unknown_threshold": gate.unknown_threshold + number / 1000})
        return self.challenger(of, folder, lambda _: {"gate": other})

    def torchserve(self):
        """A client of the stack's TorchServe beside the worker's own."""
        settings = self.stack.settings
        return TorchServe(
            DetectorSettings(
                torchserve_url=settings["FORGEWATCH_DETECTOR_TORCHSERVE_URL"],
                torchserve_management_url=settings["FORGEWATCH_DETECTOR_TORCHSERVE_MANAGEMENT_URL"],
            )
        )

    def events(self):
        return tuple(self._ledger.events())

    def standing(self):
        return replay(self.events())

    def trial(self):
        """Where the rollout stands by the ledger; it must go on."""
        trial = self.standing().trial
        assert trial is not None, [(each.move.action, each.move.reason) for each in self.events()[-2:]]
        return trial

    def view(self):
        try:
            with self.api() as api:
                return api.rollouts.view()
        except ServerUnavailableError:
            return None

    def state(self, release):
        return self.standing().releases[release.digest].state

    def kept(self, name):
        return next(kept for kept in self.stack.supervisor.states() if kept.name == name)

    def kill(self, name):
        os.kill(self.kept(name).pid, signal.SIGKILL)

    def records(self, topic):
        return all_of(self.ingest.bootstrap_servers, topic)

    def verdicts(self):
        return [Verdict.model_validate_json(each.value) for each in self.records(self.ingest.topic(VERDICTS))]

    def comparisons(self):
        topic = self.ingest.topic(COMPARISONS)
        found = [Comparison.model_validate_json(each.value) for each in self.records(topic)]
        return [each for each in found if each.left_out is None]

    def answers(self):
        """How many items have no verdict, one, and more; all of them, once the stream has ended."""
        topic = self.ingest.media_topic
        media = [f"{topic}-{each.partition}-{each.offset}" for each in self.records(topic)]
        with suppress(AssertionError):  # what is lost by then is counted
            await_that(lambda: len({each.id for each in self.verdicts()}) >= len(media), 120)
        counts = Counter(verdict.id for verdict in self.verdicts())
        assert counts.keys() <= set(media)
        return Counter(counts[id] for id in media)


def answer_by_itself(broker, media, answers):
    """A consumer as they mostly are: it answers each item, and commits its offsets now and then."""
    producer = KafkaProducer(bootstrap_servers=broker)
    told: dict[str, Any] = {"bootstrap_servers": broker, "group_id": "by itself", "session_timeout_ms": 6000}
    told["auto_commit_interval_ms"] = 60_000
    for item in KafkaConsumer(media, auto_offset_reset="earliest", **told):
        producer.send(answers, f"{item.partition}-{item.offset}".encode()).get(30)


@pytest.fixture(scope="module")
def plan_tuning():
    """Further settings of the stack; a module gives its own."""
    return {}


@pytest.fixture(scope="module")
def trials(tmp_path_factory, kafka_cache, plan_tuning, make_evaluation, candidate_of):
    tuning = {"FORGEWATCH_DETECTOR_ROLLBACK_WINDOW_S": "1", **plan_tuning}
    with Stack(tmp_path_factory.mktemp("stack"), cache=kafka_cache, tuning=tuning) as stack:
        for name in ("memory", "updater"):
            stack.supervisor.end(name)
        yield Trials(stack, make_evaluation, candidate_of)


@pytest.fixture(scope="module")
def champion(trials, untrained_artifact, tmp_path_factory):
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
def stream(trials, champion):
    """Pictures that stream through the stack while a test runs; the first has its answer."""
    with Stream(trials.ingest) as streaming:
        await_that(lambda: bool(streaming.answered_s))
        yield streaming

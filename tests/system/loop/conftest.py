"""The whole stack of one host, which the tests of this folder share."""

import io
import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from on_trial import Trials
from PIL import Image

from deploy.demo.traffic import Traffic
from deploy.local.stack import Stack
from detector.release.artifact import load
from ingest.settings import IngestSettings
from updater.benchmark.synthetic.stream import MediaSample
from updater.deploy_client import DeployClient
from updater.settings import UpdaterSettings

FORGEWATCH = Path(sys.executable).with_name("forgewatch")
SECRET = "hidden-4711"
_until_the_last_test = ExitStack()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """End the stack with the folder's last test, not with the session: it takes 2 GB."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _until_the_last_test.close()


@pytest.fixture(scope="session")
def stack(tmp_path_factory, kafka_cache):
    """A stack of processes without a release; it runs no longer than the tests of this folder."""
    with pytest.MonkeyPatch.context() as environment, _until_the_last_test:
        environment.setenv("SECRET_OF_ELSEWHERE", SECRET)
        made = Stack(
            tmp_path_factory.mktemp("stack"),
            cache=kafka_cache,
            tuning={"FORGEWATCH_DETECTOR_ROLLBACK_WINDOW_S": "1"},
        )
        yield _until_the_last_test.enter_context(made)


@pytest.fixture(scope="session")
def secret():
    """A secret in the environment of whoever started the stack."""
    return SECRET


@pytest.fixture(scope="session")
def kept(stack):
    """One process of the stack as it is at this moment, by name."""
    return lambda name: next(kept for kept in stack.supervisor.states() if kept.name == name)


@pytest.fixture(scope="session")
def cli(stack):

    def run(*arguments):
        environment = {**os.environ, **stack.settings}
        done = subprocess.run(
            [FORGEWATCH, *arguments], env=environment, capture_output=True, text=True, timeout=180
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def propose(stack, candidate_of):

    def put(artifact):
        settings = UpdaterSettings(deploy_url=stack.settings["FORGEWATCH_DEPLOY_URL"])
        with DeployClient(settings) as deploy:
            deploy.put(artifact)
            deploy.propose(candidate_of(artifact))

    return put


@pytest.fixture(scope="session")
def live(cli, propose, untrained_artifact):
    """The digest of the release that the stack serves first."""
    propose(untrained_artifact)
    cli("approve", untrained_artifact.digest[:12], "--as", "tester")
    return untrained_artifact.digest


@pytest.fixture(scope="session")
def trials(stack, make_evaluation, candidate_of):
    """The stack of this folder, in the place of one without memory and updater."""
    return Trials(stack, make_evaluation, candidate_of)


@pytest.fixture(scope="session")
def champion(stack, live):
    """The live release."""
    return load(stack.run / "deploy" / "artifacts" / live)


@pytest.fixture
def traffic(stack, live):
    """A producer and an independent reader of the stack, which serves a release."""
    bootstrap = stack.settings["FORGEWATCH_INGEST_BOOTSTRAP_SERVERS"]
    with Traffic(IngestSettings(bootstrap_servers=bootstrap)) as open_traffic:
        yield open_traffic


@pytest.fixture(scope="session")
def picture():

    def make(seed, format="JPEG"):
        pixels = np.random.default_rng(seed).integers(0, 256, (96, 128, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, format)
        return file.getvalue()

    return make


@pytest.fixture(scope="session")
def samples(picture):

    def make(seed, count):
        return [
            MediaSample(picture(seed * 1000 + i), "real", f"{seed}-{i}", f"{i}.jpg") for i in range(count)
        ]

    return make


@pytest.fixture(scope="session")
def answered_once():

    def check(traffic, sent):
        answers = Counter(traffic.verdict_ids) + Counter(traffic.dead_letter_ids)
        assert {message.id: answers[message.id] for message in sent} == {message.id: 1 for message in sent}

    return check

"""A worker's serving part over a real TorchServe, and files behind a real HTTP server in deploy's place."""

import functools
import http.server
import shutil
import threading
import time
from contextlib import closing, contextmanager, suppress
from types import SimpleNamespace

import pytest

from detector.records import Rollout
from detector.release.artifact import load, seal
from detector.serving import rollout, rollout_source
from detector.serving.loading import Holdings, Loader
from detector.serving.rollout import Serving
from detector.serving.rollout_source import RolloutClient
from detector.serving.torchserve import TorchServe, TorchServeRefusedError, TorchServeUnavailableError
from detector.settings import DetectorSettings

TIMEOUT_S = 180


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def holds(condition):
    """A TorchServe that starts or ends a process may be too busy to say what it has; it is asked again."""
    try:
        return condition()
    except TorchServeUnavailableError:
        return False


class Running:
    """The serving part of one worker. `newest` is the releases topic's last record, as it reads it."""

    def __init__(self, serving, topic):
        self.serving = serving
        self._topic = topic

    def read(self, newest):
        self._topic.newest = newest

    def until(self, condition):
        deadline = time.monotonic() + TIMEOUT_S
        while not holds(condition):
            assert time.monotonic() < deadline
            self.serving.tick()
            time.sleep(0.005)

    def scoring(self):
        return set(self.serving.route.releases) if self.serving.route else set()

    def until_scoring(self, *artifacts):
        self.until(lambda: self.scoring() == {artifact.digest for artifact in artifacts})


class Deploy:
    """What a worker gets from deploy, and the place that the worker keeps it in."""

    def __init__(self, site, settings):
        self.site = site
        self.settings = settings
        self.kept = settings.model_store_dir / "rollout.json"
        self._sequence = 0

    def publish(self, *artifacts):
        artifacts_dir = self.site / "artifacts"
        return [shutil.copytree(each.folder, artifacts_dir / each.digest) for each in artifacts]

    def say(self, stable, canary=None, share=0.0):
        self._sequence += 1
        rollout = Rollout(
            ledger="0" * 32,
            epoch=0,
            sequence=self._sequence,
            stable=stable.digest,
            canary=canary and canary.digest,
            canary_share=share,
            shared_share=share,
        )
        (self.site / "rollout").write_text(rollout.model_dump_json())
        return rollout

    @contextmanager
    def worker(self, newest, *, away=False):
        """A worker that starts; while deploy is away nobody answers it."""
        topic = SimpleNamespace(newest=newest)
        topic.poll = lambda: topic.newest
        settings = self.settings
        if away:
            settings = settings.model_copy(update={"deploy_url": "http://127.0.0.1:9"})
        with TorchServe(settings) as client, closing(Holdings(settings.model_store_dir)) as holdings:
            wanted = RolloutClient(settings)
            with Serving(settings, Loader(settings, client, holdings, wanted), topic, wanted) as serving:
                yield Running(serving, topic)

    def there(self):
        store = self.settings.model_store_dir
        with TorchServe(self.settings) as client:
            versions = set(client.versions())
        archives = {path.stem.removeprefix("forgewatch-")[:12] for path in store.glob("*.mar")}
        return versions, archives, {path.name for path in (store / "artifacts").iterdir()}


@pytest.fixture
def deploy(tmp_path, torchserve, monkeypatch):
    monkeypatch.setattr(rollout_source, "FIRST_PAUSE_S", 0.05)
    for module in (rollout, rollout_source):
        monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr(rollout, "REFUSED_PAUSE_S", 0.5)
    site = tmp_path / "site"
    (site / "artifacts").mkdir(parents=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = DetectorSettings(
        torchserve_url=torchserve.inference_url,
        torchserve_management_url=torchserve.management,
        model_store_dir=torchserve.model_store,
        deploy_url=f"http://127.0.0.1:{server.server_port}",
        rollback_window_s=0.2,
    )
    yield Deploy(site, settings)
    server.shutdown()
    server.server_close()
    with TorchServe(settings) as client:
        while versions := client.versions():
            for version in versions:
                with suppress(TorchServeRefusedError):
                    client.unregister(version)
    for left in torchserve.model_store.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()


@pytest.fixture
def releases(untrained_artifact, tmp_path):
    """Three releases that score alike and have digests of their own."""
    made = [untrained_artifact]
    for number in range(2):
        folder = tmp_path / f"release-{number}"
        shutil.copytree(untrained_artifact.folder, folder)
        made.append(seal(folder, load(folder).manifest.model_copy(update={"parent": made[-1].digest})))
    return made

"""A worker's TorchServe follows what deploy says, through faults and restarts. The server is a real one."""

import errno
import functools
import http.server
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import skimage
from prometheus_client import REGISTRY

from deploy.local.torchserve import TorchServe as Server
from detector import mar
from detector.artifact import MODEL, PROBE, Artifact, load, seal
from detector.holdings import Holdings
from detector.loading import Loader
from detector.probe import read_probe, write_probe
from detector.records import Rollout
from detector.rollout import Serving
from detector.settings import DetectorSettings
from detector.torchserve import StartError, TorchServe, TorchServeRefusedError
from detector.wanted import Wanted

pytestmark = pytest.mark.system

TIMEOUT_S = 60
WINDOW_S = 0.2


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Deploy:
    """What a worker gets from deploy, as files behind a real HTTP server."""

    site: Path
    settings: DetectorSettings
    server: http.server.ThreadingHTTPServer
    sequence: int = field(default=0)

    def publish(self, artifact: Artifact) -> Path:
        return Path(shutil.copytree(artifact.folder, self.site / "artifacts" / artifact.digest))

    def say(self, stable: Artifact, canary: Artifact | None = None, share: float = 0.0) -> Rollout:
        self.sequence += 1
        rollout = Rollout(
            ledger="0" * 32,
            epoch=0,
            sequence=self.sequence,
            stable=stable.digest,
            canary=canary and canary.digest,
            canary_share=share,
        )
        (self.site / "rollout").write_text(rollout.model_dump_json())
        return rollout

    def away(self) -> DetectorSettings:
        """The settings of a worker that reaches nobody where deploy should be."""
        return self.settings.model_copy(update={"deploy_url": "http://127.0.0.1:9"})


@pytest.fixture
def deploy(tmp_path: Path, torchserve: Server) -> Iterator[Deploy]:
    site = tmp_path / "site"
    (site / "artifacts").mkdir(parents=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = DetectorSettings(
        torchserve_url=torchserve.inference_url,
        torchserve_management_url=torchserve.management,
        model_store_dir=torchserve.model_store,
        deploy_url=f"http://127.0.0.1:{server.server_port}",
        register_timeout_s=60,
        retry_interval_s=0.05,
        max_retry_interval_s=0.2,
        refused_retry_interval_s=0.5,
        rollback_window_s=WINDOW_S,
    )
    yield Deploy(site, settings, server)
    server.shutdown()
    server.server_close()
    with TorchServe(settings) as client:
        while versions := client.versions():
            for version in versions:
                with suppress(TorchServeRefusedError):
                    client.unregister(version)
    for left in torchserve.model_store.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()


@contextmanager
def working(settings: DetectorSettings, newest: Rollout | None = None) -> Iterator[tuple[Serving, Any]]:
    """A worker's serving part, and the releases topic's last record as it reads it."""
    topic: Any = SimpleNamespace(newest=newest)
    topic.poll = lambda: topic.newest
    with TorchServe(settings) as client, closing(Holdings(settings.model_store_dir)) as holdings:
        wanted = Wanted(settings)
        with Serving(settings, Loader(settings, client, holdings, wanted), topic, wanted) as serving:
            yield serving, topic


def until(serving: Serving, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        serving.tick()
        time.sleep(0.005)


def scoring(serving: Serving) -> set[str]:
    return set(serving.route.releases) if serving.route else set()


def there(settings: DetectorSettings) -> tuple[set[str], set[str], set[str]]:
    """The versions in TorchServe, those of the archives, and the digests in the cache."""
    store = settings.model_store_dir
    with TorchServe(settings) as client:
        versions = set(client.versions())
    archives = {path.stem.removeprefix("forgewatch-")[:12] for path in store.glob("*.mar")}
    return versions, archives, {path.name for path in (store / "artifacts").iterdir()}


def unserved_since(slot: str) -> float:
    name = "forgewatch_detector_unserved_since_timestamp_seconds"
    return REGISTRY.get_sample_value(name, {"slot": slot}) or 0.0


@pytest.fixture
def releases(untrained_artifact: Artifact, tmp_path: Path) -> list[Artifact]:
    """Three releases that score alike and have digests of their own."""
    made = [untrained_artifact]
    for number in range(2):
        folder = tmp_path / f"release-{number}"
        shutil.copytree(untrained_artifact.folder, folder)
        made.append(seal(folder, load(folder).manifest.model_copy(update={"parent": made[-1].digest})))
    return made


def test_stable_and_canary_score_side_by_side_and_what_no_slot_names_is_removed(
    deploy: Deploy, releases: list[Artifact]
) -> None:
    first, second, third = releases
    for artifact in releases:
        deploy.publish(artifact)
    with working(deploy.settings, deploy.say(first)) as (serving, topic):
        until(serving, lambda: scoring(serving) == {first.digest})
        topic.newest = deploy.say(first, second, 0.25)
        until(serving, lambda: scoring(serving) == {first.digest, second.digest})
        assert serving.route is not None
        assert serving.route.canary_share == 0.25
        topic.newest = deploy.say(second, third, 0.5)
        until(serving, lambda: scoring(serving) == {second.digest, third.digest})
        both = {second.version, third.version}
        until(serving, lambda: there(deploy.settings) == (both, both, {second.digest, third.digest}))
        photograph = Path(skimage.__file__).parent / "data" / "rocket.jpg"
        url = f"{deploy.settings.torchserve_url}/predictions/forgewatch"
        answer = httpx.post(
            url, content=photograph.read_bytes(), headers={"content-type": "image/jpeg"}, timeout=60
        )
        assert answer.json()["release"] == second.digest
        with TorchServe(deploy.settings) as client:
            crops, pooling = np.zeros((1, 64, 64, 3), np.uint8), np.ones((1, 1), np.float32)
            assert client.predict(third.version, crops, pooling).logits.shape == (1, 3)


def test_no_version_is_unloaded_while_a_batch_is_on_its_way_to_it(
    deploy: Deploy, releases: list[Artifact]
) -> None:
    first, second, _ = releases
    for artifact in releases:
        deploy.publish(artifact)
    with working(deploy.settings, deploy.say(first)) as (serving, topic):
        until(serving, lambda: scoring(serving) == {first.digest})
        serving.in_use = {first.digest}
        topic.newest = deploy.say(second)
        until(serving, lambda: scoring(serving) == {second.digest})
        over = time.monotonic() + 5 * WINDOW_S
        until(serving, lambda: time.monotonic() > over)
        assert there(deploy.settings)[0] == {first.version, second.version}
        serving.in_use = ()
        until(serving, lambda: there(deploy.settings)[0] == {second.version})


def test_what_an_earlier_process_left_is_removed_but_not_what_a_neighbour_holds(
    deploy: Deploy, releases: list[Artifact]
) -> None:
    left, held, wanted = releases
    for artifact in releases:
        deploy.publish(artifact)
        with working(deploy.settings, deploy.say(artifact)) as (serving, _):
            serving.in_use = {each.digest for each in releases}  # nothing is removed by this one
            until(serving, lambda artifact=artifact: scoring(serving) == {artifact.digest})  # type: ignore[misc]
    mine = deploy.settings.model_store_dir / "somebody-elses.mar"
    mine.write_bytes(b"")
    with closing(Holdings(deploy.settings.model_store_dir)) as neighbour:
        neighbour.hold([held.digest])
        with working(deploy.settings, deploy.say(wanted)) as (serving, _):
            versions = {held.version, wanted.version}
            until(serving, lambda: there(deploy.settings)[0] == versions)
            until(serving, lambda: left.digest not in there(deploy.settings)[2])
            assert there(deploy.settings)[1] == versions | {"somebody-els"}
    assert mine.exists()


def test_after_a_restart_without_deploy_the_release_before_is_served_again(
    deploy: Deploy, releases: list[Artifact]
) -> None:
    first, second, _ = releases
    deploy.publish(first)
    with working(deploy.settings, deploy.say(first)) as (serving, _):
        until(serving, lambda: (deploy.settings.model_store_dir / "rollout.json").exists())
    with working(deploy.away(), deploy.say(second)) as (serving, _):
        until(serving, lambda: scoring(serving) == {first.digest})


def test_a_restarted_worker_scores_with_the_release_before_until_it_can_have_the_new_one(
    deploy: Deploy, releases: list[Artifact]
) -> None:
    first, second, _ = releases
    deploy.publish(first)
    with working(deploy.settings, deploy.say(first)) as (serving, _):
        until(serving, lambda: (deploy.settings.model_store_dir / "rollout.json").exists())
    before = time.time()
    with working(deploy.settings, deploy.say(second)) as (serving, _):
        until(serving, lambda: scoring(serving) == {first.digest})
        assert before <= unserved_since("stable") <= time.time()
        deploy.publish(second)
        until(serving, lambda: scoring(serving) == {second.digest})
        assert unserved_since("stable") == 0


def fail_once(monkeypatch: pytest.MonkeyPatch, where: object, name: str, error: Exception) -> list[object]:
    real, failed = getattr(where, name), []

    def failing(*arguments: Any) -> Any:
        if len(failed) < 2:
            failed.append(arguments)
            raise error
        return real(*arguments)

    monkeypatch.setattr(where, name, failing)
    return failed


@pytest.mark.parametrize("fault", ["full disk", "failed start"])
def test_a_passing_fault_at_a_swap_only_delays_it(
    deploy: Deploy, releases: list[Artifact], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    first, second, _ = releases
    deploy.publish(first)
    deploy.publish(second)
    with working(deploy.settings, deploy.say(first)) as (serving, topic):
        until(serving, lambda: scoring(serving) == {first.digest})
        if fault == "full disk":
            failed = fail_once(monkeypatch, mar, "pack", OSError(errno.ENOSPC, "no space left on device"))
        else:
            failed = fail_once(monkeypatch, TorchServe, "register", StartError("Failed to start workers"))
        topic.newest = deploy.say(second)
        until(serving, lambda: len(failed) == 2)
        assert scoring(serving) == {first.digest}
        until(serving, lambda: scoring(serving) == {second.digest})


def test_damaged_bytes_are_fetched_anew_until_they_are_right(
    deploy: Deploy, releases: list[Artifact]
) -> None:
    first, second, _ = releases
    deploy.publish(first)
    published = deploy.publish(second)
    right = (published / MODEL).read_bytes()
    (published / MODEL).write_bytes(right[:-1])
    refused = {"outcome": "refused"}
    name = "forgewatch_detector_swaps_total"
    before = REGISTRY.get_sample_value(name, refused) or 0.0
    with working(deploy.settings, deploy.say(first)) as (serving, topic):
        until(serving, lambda: scoring(serving) == {first.digest})
        topic.newest = deploy.say(second)
        until(serving, lambda: (REGISTRY.get_sample_value(name, refused) or 0.0) >= before + 2)
        assert scoring(serving) == {first.digest}
        (published / MODEL).write_bytes(right)
        until(serving, lambda: scoring(serving) == {second.digest})


def test_a_release_that_scores_otherwise_than_its_probe_never_scores_and_is_taken_out(
    deploy: Deploy, releases: list[Artifact]
) -> None:
    first, second, _ = releases
    crops, pooling, expected = read_probe(second.folder / PROBE)
    write_probe(second.folder / PROBE, crops, pooling, replace(expected, energy=expected.energy + 1))
    wrong = seal(second.folder, second.manifest)
    deploy.publish(first)
    deploy.publish(wrong)
    with working(deploy.settings, deploy.say(first)) as (serving, topic):
        until(serving, lambda: scoring(serving) == {first.digest})
        topic.newest = deploy.say(wrong)
        until(serving, lambda: wrong.version in there(deploy.settings)[0])
        until(serving, lambda: wrong.version not in there(deploy.settings)[0])
        assert scoring(serving) == {first.digest}
        assert unserved_since("stable") > 0


def test_a_forged_record_on_the_topic_is_never_served(deploy: Deploy, releases: list[Artifact]) -> None:
    first, second, _ = releases
    deploy.publish(first)
    deploy.publish(second)
    name = "forgewatch_detector_unconfirmed_rollouts_total"
    with working(deploy.settings, deploy.say(first)) as (serving, topic):
        until(serving, lambda: scoring(serving) == {first.digest})
        before = REGISTRY.get_sample_value(name) or 0.0
        topic.newest = Rollout(ledger="0" * 32, epoch=0, sequence=10**9, stable=second.digest)
        until(serving, lambda: REGISTRY.get_sample_value(name) == before + 1)
        over = time.monotonic() + 1
        until(serving, lambda: time.monotonic() > over)
        assert scoring(serving) == {first.digest}
        assert second.version not in there(deploy.settings)[0]

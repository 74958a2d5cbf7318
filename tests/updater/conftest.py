"""A memory with labelled exemplars, a deploy server that really runs, and updates that are soon done."""

import dataclasses
import os
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from memory.crops.crop_store import CropStore
from memory.index.index import Index
from memory.labels import extend_label, open_label
from memory.settings import MemorySettings
from memory.store import Store
from updater.settings import UpdaterSettings

_ROOM = Path(__file__).parent
_TRAIN_NETWORKS = tuple(str(_ROOM / name) for name in ("training", "benchmark", "test_runner"))


def pytest_collection_modifyitems(items):
    """Mark what trains networks as slow, all of it: most of these tests take more than a second."""
    for item in items:
        if str(item.path).startswith(_TRAIN_NETWORKS):
            item.add_marker(pytest.mark.slow)


CROP_PX = 64


def scene(rng):
    """A smooth picture with sensor noise, 2 crops, uint8 [2, 64, 64, 3]."""
    y, x = np.mgrid[0:CROP_PX, 0:CROP_PX] / CROP_PX
    waves = 0.0
    for _ in range(4):
        strength, across, down, phase = (rng.normal(0, 40), *rng.uniform(0, (3, 3, 6)))
        waves = waves + strength * np.sin(2 * np.pi * (across * x + down * y) + phase)
    crops = 128 + waves[None, :, :, None] + rng.normal(0, 3, (2, CROP_PX, CROP_PX, 3))
    return crops.clip(0, 255).astype(np.uint8)


def forge(crops, family):
    """Forgeries that the smallest network learns in seconds."""
    if family == "blocky":
        return np.repeat(np.repeat(crops[:, ::2, ::2], 2, 1), 2, 2)
    if family in ("striped", "faint"):  # a release that never saw a faint one calls two of three real
        strength = {"striped": 9, "faint": 1}[family]
        brighter = crops.astype(np.int16) + strength * (np.arange(crops.shape[1]) % 4 == 0)[:, None, None]
        return brighter.clip(0, 255).astype(np.uint8)
    if family == "posterised":
        return (crops // 16 * 16).astype(np.uint8)
    assert family == "real"
    return crops


@pytest.fixture(scope="session")
def labelled():
    """Makes labelled items of two crops each, from the number of each class and a seed."""
    from updater.data.training_data import LabelledCrops

    def labelled(counts, seed=0):
        rng = np.random.default_rng(seed)
        families = tuple(name for name, count in counts.items() for _ in range(count))
        ids = tuple(f"{name}-{seed}-{number}" for number, name in enumerate(families))
        crops = [forge(scene(rng), name.rpartition("/")[2]) for name in families]
        starts = 2 * np.arange(len(families) + 1)
        return LabelledCrops(ids, families, ("test",) * len(ids), ids, np.concatenate(crops), starts)

    return labelled


@pytest.fixture
def memory_settings(tmp_path):
    return MemorySettings(
        database_url=f"sqlite:///{tmp_path / 'memory.sqlite'}",
        crops_url=str(tmp_path / "crops"),
        index_path=tmp_path / "index",
    )


@pytest.fixture
def store(memory_settings):
    opened = Store(memory_settings.database_url)
    yield opened
    opened.close()


@pytest.fixture
def crops(memory_settings):
    return CropStore(memory_settings.crops_url)


@pytest.fixture(scope="session")
def item_features():
    """Features of items as the memory computes them: their graph is made once."""
    from memory.features import ItemFeatures

    return ItemFeatures(CROP_PX)


@pytest.fixture
def remember(store, crops, item_features):
    """Remember and label `count` new exemplars of a family; returns their ids and the label's number.

    shown, frames: make an item's picture, uint8 [H, W, 3], and a video's crops, with a random generator.
    """
    from exemplars import make_arrival

    from memory.crops.scans import encode_frames
    from memory.features import FEATURE_VERSION, WIDTH
    from memory.intake import remember as take_in

    index, made = Index(FEATURE_VERSION, WIDTH), iter(range(10**6))

    def remember(family, count, shown=None, frames=None):
        arrivals = []
        for _ in range(count):
            number = next(made)
            rng = np.random.default_rng(number)
            picture = forge(scene(rng), family)
            own = {"id": f"import-{number}", "source": "test", "group": f"scene-{number}"}
            seen = {"picture": shown and shown(rng), "scan": frames and encode_frames(frames(rng))}
            features = item_features([picture])[0]
            arrivals.append(make_arrival(number, 0, crops=picture, features=features, **own, **seen))
        digests = [crops.put(arrival.crops, arrival.picture, arrival.scan) for arrival in arrivals]
        with store.write() as connection:
            take_in(connection, crops, index, arrivals, digests, near=0.0)
            label = open_label(connection, family, "ann")
            extend_label(connection, label, [arrival.id for arrival in arrivals])
        return [arrival.id for arrival in arrivals], label

    return remember


LENIENT = {
    "max_reals_wrong": 1.0,
    "max_forgotten_points": 100.0,
    "max_power_points": 100.0,
    "max_robustness_points": 100.0,
    "min_new_named": 0.0,
}
"""Bounds of the gates that any network passes."""


@pytest.fixture
def deploy_server(tmp_path, memory_settings):
    """Runs deploy's own app with these bounds of the gates; gives its URL and its artifacts' folder."""
    folder = tmp_path / "deploy"
    return lambda database_url=f"sqlite:///{folder / 'deploy.sqlite'}", **bounds: run_deploy(
        folder, memory_settings, database_url, UpdaterSettings(**LENIENT | bounds)
    )


@contextmanager
def run_deploy(folder, memory_settings, database_url, bounds):
    import uvicorn

    from deploy.app import create_app
    from deploy.server.services import open_services
    from deploy.settings import DeploySettings

    settings = DeploySettings(artifacts_url=str(folder / "artifacts"), database_url=database_url)
    opened = ExitStack()
    with pytest.MonkeyPatch.context() as environment:
        for name in memory_settings.model_fields_set:
            environment.setenv(f"FORGEWATCH_MEMORY_{name.upper()}", str(getattr(memory_settings, name)))
        environment.setenv("FORGEWATCH_UPDATER_DATABASE_URL", f"sqlite:///{folder / 'runs.sqlite'}")
        parts = opened.enter_context(open_services(settings))  # its publisher is never started
    app = create_app(settings, dataclasses.replace(parts, updater=bounds))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", folder / "artifacts"
    finally:
        server.should_exit = True
        thread.join()
        opened.close()


def shorten(monkeypatch, backbone_steps, balanced_steps):
    from updater.candidate import plan

    steps = {"backbone_steps": backbone_steps, "balanced_steps": balanced_steps, "batch": 16}
    for name in ("FIRST", "UPDATE"):
        monkeypatch.setattr(plan, name, dataclasses.replace(getattr(plan, name), **steps))


@pytest.fixture
def short_recipes(monkeypatch):
    """The families of conftest are told apart after so few steps."""
    shorten(monkeypatch, 28, 60)


@pytest.fixture
def few_measured(monkeypatch):
    """A few items are enough to be judged under distortions, and to prove a graph by."""
    from updater.candidate import builder, robustness

    monkeypatch.setattr(robustness, "MAX_ITEMS", 4)
    monkeypatch.setattr(builder, "PROOF_ITEMS", 6)


@pytest.fixture
def scant_recipes(monkeypatch, few_measured):
    """Enough to go through every stage."""
    shorten(monkeypatch, 2, 2)


@pytest.fixture
def head_recipes(monkeypatch, few_measured):
    """Only the head is trained: a backbone stays what it began with."""
    shorten(monkeypatch, 0, 2)


@pytest.fixture
def make_settings(tmp_path):
    """Settings with gates that any network passes, unless said otherwise; by lda where no backbone is."""

    def make(url, where="runner", **changed):
        usual = LENIENT | {
            "database_url": f"sqlite:///{tmp_path / where / 'runs.sqlite'}",
            "learner": "lda" if changed.get("backbone") == "none" else "softmax",
            "backbone": "test_efficientnet",
        }
        folder = tmp_path / where
        return UpdaterSettings(work_dir=folder, deploy_url=url, threads=1, device="cpu", **(usual | changed))

    return make


@pytest.fixture
def learn(memory_settings):
    """Carries an update out; gives the release that it proposed, which is approved then."""
    from update_processes import approve

    from detector.release.artifact import verify
    from updater.worker import run_once

    def learn(url, artifacts, settings):
        run = run_once(settings, memory_settings)
        assert run.state.startswith("proposed"), run.error
        approve(url, run.candidate)
        return verify(artifacts / run.candidate, run.candidate)

    return learn


@pytest.fixture
def environment(memory_settings, tmp_path):
    """The environment of a run's pod beside a deploy server, with bounds that any candidate meets."""

    def environment(url, where="run", **settings):
        room = (
            {name.upper(): str(bound) for name, bound in LENIENT.items()}
            | {
                "DATABASE_URL": f"sqlite:///{tmp_path / where / 'runs.sqlite'}",
                "WORK_DIR": str(tmp_path / where),
                "DEPLOY_URL": url,
                "METRICS_PORT": "0",
                "LEASE_S": "2",
                "THREADS": "1",
                "DEVICE": "cpu",
                "LEARNER": "softmax",
                "BACKBONE": "lcnet_050",
            }
            | settings
        )
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("FORGEWATCH_")},
            **{f"FORGEWATCH_UPDATER_{name}": value for name, value in room.items()},
            "FORGEWATCH_MEMORY_DATABASE_URL": memory_settings.database_url,
            "FORGEWATCH_MEMORY_CROPS_URL": memory_settings.crops_url,
            "FORGEWATCH_LOG_FORMAT": "json",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(_ROOM.parents[1]), os.environ.get("PYTHONPATH", "")]),
        }

    return environment

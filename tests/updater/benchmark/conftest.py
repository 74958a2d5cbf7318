"""The smallest stream for the benchmark's runner: three tasks of a few crops, a few steps each."""

import pytest

from detector.release.manifest import Architecture
from updater.benchmark.continual import left_out
from updater.benchmark.continual.run import stream_benchmark
from updater.benchmark.continual.setup import Setup
from updater.benchmark.continual.streams import with_features
from updater.benchmark.data.tasks import OutlierSet, Stream, Task
from updater.benchmark.learners.methods import LEARNERS
from updater.benchmark.report.harness import run_seeds
from updater.benchmark.report.run_folder import load_scores

KINDS = {"a": frozenset({"blending"}), "b": frozenset({"noise"})}
SMALL = Setup(
    architecture=Architecture(backbone="none", crop_px=64, width=16),
    memory=10,
    backbone_epochs=0,
    head_epochs=1.0,
    least_steps=6,
)


def _silent(stage, done, total):
    pass


def _start(stream, folder, setup=SMALL, seeds=(0,), *, leave=False, progress=_silent):
    task = stream_benchmark("cddb", stream, setup, first_seed=seeds[0], kinds=KINDS, leave_families_out=leave)
    runs = run_seeds(task, seeds, folder, command=("forgewatch",), device="cpu", progress=progress)
    return [(run, load_scores(folder / f"seed-{run.seed}")) for run in runs]


@pytest.fixture(scope="session")
def silent():
    """What is told of a run's progress and heard by nobody."""
    return _silent


@pytest.fixture(scope="session")
def start():
    """Runs the benchmark on a stream, into a folder; returns each seed's run with its scores."""
    return _start


@pytest.fixture
def small():
    """The setup of a run that is soon done."""
    return SMALL


@pytest.fixture
def kinds():
    """The kinds of pseudo-forgery that are too near to a family."""
    return KINDS


@pytest.fixture(scope="session")
def stream(labelled):
    def part(fake, count, seed):
        name = fake[0]
        return labelled({f"{name}/real": count, f"{name}/{fake[1]}": count}, seed)

    tasks = [
        Task(fake[0], *(part(fake, count, 10 * number + at) for at, count in enumerate((6, 4, 5))))
        for number, fake in enumerate([("a", "blocky"), ("b", "striped"), ("c", "posterised")])
    ]
    # What no training changes is computed once for all tests.
    return with_features(Stream("tiny", tuple(tasks)), SMALL, _silent)


@pytest.fixture(scope="session")
def classes(labelled):
    """Classes that are neither real nor fake, and an outlier set, as OpenCIL has them."""
    tasks = [
        Task(f"step-{n}", *(labelled(dict.fromkeys(names, 6), 50 + 10 * n + at) for at in range(3)))
        for n, names in enumerate([("x/blocky", "y/striped"), ("z/posterised", "w/blocky")])
    ]
    outliers = OutlierSet("other", labelled({"other/posterised": 8}, seed=91))
    return with_features(Stream("opencil", tuple(tasks), (outliers,)), SMALL, _silent)


@pytest.fixture(autouse=True)
def plain_is_small(monkeypatch):
    monkeypatch.setattr(left_out, "PLAIN_BACKBONE", "lcnet_035")
    monkeypatch.setattr("updater.training.fit.SAVE_EVERY", 2)


@pytest.fixture
def steps(monkeypatch):
    seen = []
    for name, learn in list(LEARNERS.items()):

        def spy(step, name=name, learn=learn):
            seen.append((name, step))
            return learn(step)

        monkeypatch.setitem(LEARNERS, name, spy)
    return seen


@pytest.fixture(scope="session")
def whole(stream, tmp_path_factory):
    """An unbroken run with every family left out, and its scores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(left_out, "PLAIN_BACKBONE", "lcnet_035")
        ((one, scores),) = _start(stream, tmp_path_factory.mktemp("whole"), leave=True)
    return one, scores

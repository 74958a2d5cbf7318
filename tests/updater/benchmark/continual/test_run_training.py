"""What each step of a benchmark's run is trained on."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from detector.model.backbone import shown_to
from ingest.records import PicturePlan
from updater.benchmark.continual import run, scoring
from updater.benchmark.continual.continual import Continual
from updater.benchmark.continual.streams import with_features
from updater.benchmark.data.tasks import Task
from updater.training import frozen
from updater.training.frozen import picture_of
from updater.training.weights import read_weights


def test_the_budget_is_never_exceeded_and_a_shrinking_class_keeps_its_best(
    stream, tmp_path, monkeypatch, small, silent
):
    kept = []
    remember = Continual._remember

    def spy(self, *given):
        remember(self, *given)
        kept.append(self.memory)

    monkeypatch.setattr(Continual, "_remember", spy)
    Continual(stream, small, 0, tmp_path, silent).run()
    sizes = [{name: len(items) for name, items in memory.items()} for memory in kept]
    assert [sum(size.values()) for size in sizes] == [10, 8, 6]
    assert [size["a/real"] for size in sizes] == [5, 2, 1]
    for before, after in itertools.pairwise(kept):
        for name, items in before.items():
            assert after[name].ids == items.ids[: len(after[name])]


def test_no_memory_at_all_keeps_nothing(stream, tmp_path, steps, small, silent):
    Continual(stream, replace(small, memory=0), 0, tmp_path, silent).run()
    assert [len(step.train) for _, step in steps] == [12, 12, 12]


def test_joint_training_sees_every_task_and_an_update_only_its_own_and_the_exemplars(
    stream, tmp_path, steps, start
):
    start(stream, tmp_path)
    assert [name for name, _ in steps] == ["softmax-rehearsal"] * 3 + ["joint"]
    assert [len(step.train) for _, step in steps] == [12, 22, 20, 36]
    assert steps[-1][1].classes == tuple(name for task in stream.tasks for name in task.classes)
    assert {media for _, step in steps for media in step.train.ids} == {
        media for task in stream.tasks for media in task.train.ids
    }


def test_a_family_left_out_is_never_trained_on_nor_are_its_kinds(stream, tmp_path, steps, kinds, start):
    start(stream, tmp_path, leave=True)
    after = steps[4:]
    assert len(after) == 9  # each family once whole, once for the plain energy, once with its reals known
    for number, family in enumerate(["a", "a", "b", "b", "c", "c"]):
        step = after[number][1]
        assert not any(name.startswith(f"{family}/") for name in step.train.families + step.classes)
        assert step.without == kinds.get(family, frozenset())
        assert len(step.train) == 24
    for (_, step), family in zip(after[6:], "abc", strict=True):
        own = {name for name in step.train.families if name.startswith(f"{family}/")}
        assert own == {f"{family}/real"}
        assert step.without == kinds.get(family, frozenset())


def test_one_task_alone_cannot_be_left_out(stream, tmp_path, start):
    with pytest.raises(ValueError, match="one task cannot be left out"):
        start(replace(stream, tasks=stream.tasks[:1]), tmp_path, leave=True)


NAME, SIDE = "test_efficientnet", 32


def painted(items, seed):
    """Fakes of all families are shown in one colour, and reals in another; the crops know nothing of it."""
    rng = np.random.default_rng(seed)
    fake = np.array([not name.endswith("/real") for name in items.families])
    colours = np.where(fake[:, None], [60, 180, 60], [180, 60, 60])[:, None, None]
    shown = colours + rng.normal(0, 25, (len(items), SIDE, SIDE, 3))
    return replace(items, pictures=shown.clip(0, 255).astype(np.uint8))


@pytest.fixture
def pictured(stream):
    tasks = [
        Task(task.name, *(painted(part, 3 * n + at) for at, part in enumerate(parts)))
        for n, task in enumerate(stream.tasks)
        for parts in [(task.train, task.calibration, task.test)]
    ]
    return replace(stream, tasks=tuple(tasks))


@pytest.fixture
def setup(small, published):
    weights = read_weights(published(NAME))
    picture = picture_of(NAME, SIDE, shown_to(NAME), weights)
    return replace(
        small,
        architecture=small.architecture.model_copy(update={"picture": picture}),
        picture_plan=PicturePlan(width_px=SIDE, height_px=SIDE, interpolation="bicubic"),
        picture_from=weights,
        memory=60,  # which no family left out knows of
    )


def test_the_vote_is_in_what_is_told_of_known_and_left_out_and_in_no_score(
    pictured, setup, whole, start, tmp_path, monkeypatch
):
    fitted, vote_beside = [], scoring.vote_beside

    def spy(logits, train, *others):
        fitted.append(set(train.families))
        return vote_beside(logits, train, *others)

    for module in (run, scoring):
        monkeypatch.setattr(module, "vote_beside", spy)
    ((with_vote, scores),) = start(pictured, tmp_path, setup, leave=True)
    without, plain_scores = whole
    # Six steps teach the network next to nothing; the pictures tell all.
    assert without.figures.aa < 80 < 90 < with_vote.figures.aa
    assert without.figures.joint_aa < 80 < 95 < with_vote.figures.joint_aa
    # Task by task, all at once, and without each family: its reals unknown, and known.
    classes = [set(task.classes) for task in pictured.tasks]
    everything = set.union(*classes)
    left_out = [everything - one for one in classes]
    left_out += [everything - {name for name in one if "real" not in name} for one in classes]
    growing = [set.union(*classes[: number + 1]) for number in range(3)]
    assert fitted == [*growing, everything, *left_out]
    for name, found in scores.items():
        assert np.allclose(found.unknown, plain_scores[name].unknown, atol=1e-4)
        assert np.allclose(found.control, plain_scores[name].control, atol=1e-4)
    assert with_vote.options["picture_from"] == setup.picture_from.digest
    assert with_vote.options["architecture"]["picture"]["weights"].endswith("licence CC0-1.0)")


def test_another_run_looks_at_no_picture_again(pictured, setup, silent, tmp_path, monkeypatch):
    first = with_features(pictured, setup, silent, tmp_path / "kept")
    assert first.tasks[0].train.pictures is None
    monkeypatch.setattr(frozen, "by_rows", None)
    again = with_features(pictured, setup, silent, tmp_path / "kept")
    for one, other in zip(first.tasks, again.tasks, strict=True):
        assert np.array_equal(one.test.picture_features, other.test.picture_features)

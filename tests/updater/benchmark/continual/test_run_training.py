"""What each step of a benchmark's run is trained on."""

import itertools
from dataclasses import replace

import pytest

from updater.benchmark.continual.continual import Continual


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

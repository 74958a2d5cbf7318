"""Distorted copies are in an update's training, and in that of a benchmark, where they are asked for."""

from dataclasses import replace

import pytest
import torch

from detector.release.architecture import Architecture
from ingest.records import CropPlan
from updater.benchmark.continual import left_out
from updater.benchmark.continual.setup import Setup
from updater.benchmark.data.tasks import Task
from updater.candidate import builder
from updater.candidate.builder import Workshop, identity
from updater.candidate.plan import Plan
from updater.candidate.recipe import TrainingSettings
from updater.data.training_data import Splits
from updater.settings import UpdaterSettings
from updater.training.augmentations import Distorted

BARE = Architecture(backbone="none", crop_px=64)


class AskedError(Exception):
    """In the place of training: the step that was asked for."""


@pytest.fixture
def plan(labelled):
    parts = [labelled({"real": 6, "blocky": 6}, seed) for seed in range(3)]
    return Plan(
        classes=("real", "blocky"),
        new=("blocky",),
        waiting={},
        architecture=BARE,
        crop_plan=CropPlan(crop_px=64),
        parent=None,
        splits=Splits(*parts),
        without=frozenset(),
        seed=0,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize(("settings", "copies"), [({}, 0), ({"distorted_share": 0.5}, 6)])
def test_an_update_trains_on_so_many_copies_as_its_settings_say_and_on_none_by_default(
    plan, settings, copies, tmp_path, monkeypatch
):
    def asked(step, file):
        raise AskedError(step)

    monkeypatch.setattr(builder, "learn", asked)
    plan = replace(plan, training=TrainingSettings.of(UpdaterSettings(**settings, epochs=64)))
    with pytest.raises(AskedError) as caught:
        Workshop(tmp_path, identity(plan, 1)).learnt(plan, lambda *at: None)
    (step,) = caught.value.args
    assert sum("-distorted-" in one for one in step.train.ids) == copies
    assert len(step.train) == 12 + copies
    # A batch is 64: each item and each copy is drawn as often as EPOCHS says, pseudo-forgeries beside them.
    assert step.recipe.balanced_steps == round((12 + copies) * (1 + step.recipe.pseudo_share))


def test_a_checkpoint_of_other_copies_is_not_gone_on_from(plan):
    some = replace(plan, training=TrainingSettings(distorted=Distorted(0.5, "rand")))
    harder = replace(plan, training=TrainingSettings(distorted=Distorted(0.5, "mix3")))
    assert len({identity(one, 1) for one in (plan, some, harder)}) == 3


def test_while_a_family_is_left_out_the_copies_have_nothing_of_its_kinds(labelled, monkeypatch, tmp_path):
    seen = []

    def spy(items, distorted, without, *rest):
        seen.append((distorted, without))
        raise AskedError

    monkeypatch.setattr(left_out, "with_distorted", spy)
    items = labelled({"one/real": 4, "one/blocky": 4})
    setup = Setup(architecture=BARE, distorted=Distorted(1.0, "mix2"))
    task, kinds = Task("one", items, items, items), frozenset({"noise"})
    with pytest.raises(AskedError):
        left_out.trained([task], setup, 0, kinds, tmp_path / "checkpoint", lambda *at: None)
    assert seen == [(Distorted(1.0, "mix2"), kinds)]

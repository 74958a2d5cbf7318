import dataclasses

import numpy as np
import pytest

from updater.candidate.plan import LEAST, CandidateRefusedError, Parent, make_plan
from updater.candidate.recipe import TrainingSettings
from updater.data.training_data import LabelledCrops, Splits
from updater.settings import UpdaterSettings

SETTINGS = UpdaterSettings(device="cpu", backbone="lcnet_050")


def splits(**counts):
    """Items by class: one number for all splits, or (train, calibration, test)."""
    made = {}
    for place, split in enumerate(LEAST):
        families = [
            name
            for name, count in counts.items()
            for _ in range(count if isinstance(count, int) else count[place])
        ]
        made[split] = LabelledCrops(
            ids=tuple(f"{split}-{i}" for i in range(len(families))),
            families=tuple(families),
            sources=("test",) * len(families),
            groups=tuple(f"{split}-{i}" for i in range(len(families))),
            crops=np.zeros((len(families), 32, 32, 3), np.uint8),
            starts=np.arange(len(families) + 1),
        )
    return Splits(**made)


@pytest.fixture
def parent(untrained_artifact):
    return Parent(untrained_artifact, network=None)


def test_the_first_release_learns_every_family_that_has_enough_and_says_which_wait():
    plan = make_plan(SETTINGS, None, splits(real=9, striped=9, blend=9, few=(9, 9, 1)))
    assert plan.classes == ("real", "blend", "striped")
    assert plan.new == ("blend", "striped")
    assert plan.waiting == {"few": {"train": 9, "calibration": 9, "test": 1}}
    assert plan.splits.train.counts() == {"real": 9, "blend": 9, "striped": 9}
    assert (plan.architecture.backbone, plan.crop_plan.crop_px) == ("lcnet_050", 32)


def test_an_update_keeps_the_parents_order_of_classes_its_network_and_its_cropping(parent):
    plan = make_plan(SETTINGS, parent, splits(real=9, aaa=9, upsampling=9, blend=9))
    assert plan.classes == ("real", "blend", "upsampling", "aaa")
    assert plan.new == ("aaa",)
    assert plan.architecture == parent.artifact.manifest.architecture
    assert plan.crop_plan == parent.artifact.manifest.contract.crop_plan


def test_an_old_family_stays_with_few_exemplars_and_is_missed_with_none(parent):
    plan = make_plan(SETTINGS, parent, splits(real=9, blend=1, upsampling=9))
    assert plan.classes == ("real", "blend", "upsampling")
    assert plan.waiting == {}
    with pytest.raises(CandidateRefusedError, match="knows blend"):
        make_plan(SETTINGS, parent, splits(real=9, blend=(1, 1, 0), upsampling=9))
    with pytest.raises(CandidateRefusedError, match="knows blend"):
        make_plan(SETTINGS, parent, splits(real=9, upsampling=9))


@pytest.mark.parametrize("short", list(LEAST))
def test_without_enough_reals_in_every_split_nothing_is_learnt(short):
    counts = dict(LEAST) | {short: LEAST[short] - 1}
    with pytest.raises(CandidateRefusedError, match="too few labelled reals"):
        make_plan(SETTINGS, None, splits(real=tuple(counts.values()), blend=9))
    make_plan(SETTINGS, None, splits(real=tuple(LEAST.values()), blend=9))


def test_an_empty_memory_is_refused():
    with pytest.raises(CandidateRefusedError, match="too few labelled reals: 0 train"):
        make_plan(SETTINGS, None, splits())


@pytest.mark.parametrize("given", [{"augment": "flip"}, {"head_epochs": 1.0}])
def test_what_is_of_a_backbone_is_refused_without_one_in_one_line(given):
    some = splits(real=9, blend=9)
    bare = UpdaterSettings(device="cpu", backbone="none", **given)
    (name,) = given
    with pytest.raises(CandidateRefusedError, match=f"FORGEWATCH_UPDATER_{name.upper()} is of a backbone's"):
        make_plan(bare, None, some)
    plan = make_plan(bare.model_copy(update={"backbone": "lcnet_050"}), None, some)
    assert getattr(plan.training, name) == given[name]


def test_everything_that_a_candidate_follows_from_is_in_its_identity(parent):
    from updater.candidate.builder import identity

    plan = make_plan(SETTINGS, parent, splits(real=9, blend=9, upsampling=9))
    other = make_plan(SETTINGS, parent, splits(real=9, blend=9, upsampling=(9, 9, 8)))
    changed = [
        dataclasses.replace(plan, seed=1),
        dataclasses.replace(plan, without=frozenset({"jpeg"})),
        dataclasses.replace(plan, parent=None),
        dataclasses.replace(plan, training=TrainingSettings(rate=0.1)),
        other,
    ]
    found = [identity(one, 1) for one in (plan, *changed)] + [identity(plan, 2)]
    assert len(set(found)) == len(found)
    assert identity(plan, 1) == identity(dataclasses.replace(plan), 1)

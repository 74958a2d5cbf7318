import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from detector.model.network import Network
from detector.release.experts import ExpertContract
from detector.release.manifest import Architecture, SourceThresholds, decide
from detector.serving.session import open_session
from detector.verdicts import fake_probabilities
from memory.settings import MemorySettings
from updater.candidate.draft import identity_of
from updater.candidate.evaluate import score_items
from updater.candidate.plan import (
    LEAST,
    CandidateRefusedError,
    Parent,
    live_calls,
    load_parent,
    make_plan,
    picture_plan,
    recipe_of,
)
from updater.data.stored_rows import store_rows
from updater.data.training_data import LabelledCrops, Splits
from updater.experts.look import Expert
from updater.settings import UpdaterSettings
from updater.training.loop import _identity
from updater.training.step import FIRST, UPDATE, Step, TrainedModel
from updater.training.weights import Weights

SETTINGS = UpdaterSettings(device="cpu", learner="softmax", backbone="lcnet_050")


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


@pytest.mark.parametrize("usual", [FIRST, UPDATE])
def test_where_nothing_is_set_an_update_trains_as_usual(usual):
    assert recipe_of(SETTINGS, usual, 1000) == usual


def test_epochs_and_rate_are_those_of_a_backbone_which_softmax_needs():
    # 640 items and half as many pseudo-forgeries are 30 batches of 32.
    given = SETTINGS.model_copy(update={"epochs": 2, "rate": 0.01, "batch": 32})
    assert recipe_of(given, UPDATE, 640) == replace(UPDATE, backbone_steps=60, backbone_rate=0.01, batch=32)
    assert recipe_of(SETTINGS.model_copy(update={"epochs": 0.01}), FIRST, 8).backbone_steps == 1
    with pytest.raises(ValueError, match="LEARNER=softmax trains a backbone: name a timm model"):
        UpdaterSettings(learner="softmax")


@pytest.mark.parametrize(("name", "value"), [("EPOCHS", "0"), ("RATE", "nan"), ("BATCH", "0")])
def test_what_no_training_can_be_told_is_refused_by_name(monkeypatch, name, value):
    monkeypatch.setenv(f"FORGEWATCH_UPDATER_{name}", value)
    with pytest.raises(ValueError, match=name.lower()):
        UpdaterSettings()


def test_everything_that_a_candidate_follows_from_is_in_its_identity_of(parent):
    plan = make_plan(SETTINGS, parent, splits(real=9, blend=9, upsampling=9))
    changed = [
        replace(plan, seed=1),
        replace(plan, without=frozenset({"jpeg"})),
        replace(plan, parent=None),
        replace(plan, recipe=replace(plan.recipe, backbone_rate=0.1)),
        make_plan(SETTINGS, parent, splits(real=9, blend=9, upsampling=(9, 9, 8))),
    ]
    found = [identity_of(each, 1) for each in (plan, *changed)] + [identity_of(plan, 2)]
    assert len(set(found)) == len(found)
    assert identity_of(plan, 1) == identity_of(replace(plan), 1)


def split(name, counts):
    rng = np.random.default_rng(len(name))
    families = tuple(family for family, count in counts.items() for _ in range(count))
    ids = tuple(f"{name}-{number}" for number in range(len(families)))
    # Crops of several strengths of noise lie on both sides of the thresholds.
    strength = rng.uniform(0, 128, (2 * len(ids), 1, 1, 1))
    crops = (128 + rng.uniform(-1, 1, (2 * len(ids), 64, 64, 3)) * strength).astype(np.uint8)
    return LabelledCrops(ids, families, ("test",) * len(ids), ids, crops, 2 * np.arange(len(ids) + 1))


@pytest.fixture(scope="module")
def plan(untrained_artifact):
    counts = {"real": 20, "blend": 10, "upsampling": 10, "new": 8}
    parts = {name: split(name, counts) for name in ("train", "calibration", "test")}
    return make_plan(SETTINGS, load_parent(untrained_artifact), Splits(**parts))


def live_of(plan, gate, **columns):
    artifact, items = plan.parent.artifact, replace(plan.splits.calibration, **columns)
    moved = replace(artifact, manifest=artifact.manifest.model_copy(update={"gate": gate}))
    return live_calls(replace(plan.parent, artifact=moved), items, plan.device, lambda *at: None)


def test_the_network_as_it_was_trained_says_what_the_live_release_says_of_each_item(plan):
    artifact = plan.parent.artifact
    items = plan.splits.calibration
    scored = score_items(open_session(artifact, threads=1), items)
    fake = fake_probabilities(scored["logits"])
    bounds = {
        "unknown_threshold": float(np.median(scored["unknown_score"])) + 1e-3,
        "fake_threshold": float(np.median(fake)) + 1e-6,
    }
    gate = artifact.manifest.gate.model_copy(update=bounds)
    live = live_of(plan, gate)
    assert live.known.tolist() == [family != "new" for family in items.families]
    assert 0 < live.unknown.sum() < len(items)
    assert 0 < live.fake.sum() < len(items)
    assert np.array_equal(live.unknown, scored["unknown_score"] > gate.unknown_threshold)
    assert np.array_equal(live.fake, fake > gate.fake_threshold)


def test_of_videos_it_says_what_the_live_release_says_of_videos(plan):
    artifact, items = plan.parent.artifact, plan.splits.calibration
    scored = score_items(open_session(artifact, threads=1), items)
    unknown, fake = scored["unknown_score"], fake_probabilities(scored["logits"])
    lower, higher = (float(one) for one in np.quantile(unknown, [0.3, 0.7]))
    gate = artifact.manifest.gate.model_copy(
        update={
            "unknown_threshold": lower,
            "video_unknown_threshold": higher,
            "fake_threshold": float(np.median(fake)) + 1e-6,
        }
    )
    videos = np.arange(len(items)) % 2 == 0
    each = zip(unknown, fake, videos, strict=True)
    expected = [decide(float(u), float(f), gate, video=bool(v)) == "unknown" for u, f, v in each]
    assert live_of(plan, gate, videos=videos).unknown.tolist() == expected
    assert expected != (unknown > lower).tolist(), "some video lies between the two"


def test_of_a_source_with_its_own_thresholds_it_says_what_the_live_release_says_by_those(plan):
    artifact, items = plan.parent.artifact, plan.splits.calibration
    own = SourceThresholds(groups=20, unknown_threshold=-99, fake_threshold=0)
    gate = artifact.manifest.gate.model_copy(
        update={"unknown_threshold": 99, "fake_threshold": 1, "sources": {"camera": own}}
    )
    sources = tuple("camera" if number % 2 else "other" for number in range(len(items)))
    live = live_of(plan, gate, sources=sources)
    assert live.unknown.tolist() == live.fake.tolist() == [source == "camera" for source in sources]


def test_where_nothing_is_live_there_is_nothing_to_keep(plan):
    assert live_calls(None, plan.splits.calibration, plan.device, lambda *at: None) is None


def test_an_expert_of_whole_pictures_needs_a_memory_that_keeps_them():
    about = {"name": "whole", "input": "resize", "side_px": 32, "licence": "Apache-2.0"}
    contract = ExpertContract(**about, digest="", checkpoint="")
    experts = [Expert(contract, Path("whole.onnx"))]
    with pytest.raises(CandidateRefusedError, match=r"expert whole: set FORGEWATCH_MEMORY_PICTURE_PX"):
        picture_plan(MemorySettings(), None, experts)
    kept = MemorySettings(picture_px=32)
    assert picture_plan(kept, None, experts) == kept.picture_plan
    assert picture_plan(kept, None, []) is None


# A step on its way to another process is the step that is trained there.
@pytest.mark.parametrize("first", [False, True])
def test_a_step_that_was_sent_is_the_step_that_its_checkpoint_is_bound_to(labelled, tmp_path, first):
    architecture = Architecture(backbone="test_efficientnet", crop_px=64)
    items = labelled({"real": 3, "blocky": 2, "striped": 2})
    step = Step(
        train=replace(items, crops=store_rows(items.crops)),
        classes=("real", "blocky", "striped"),
        architecture=architecture,
        previous=None if first else TrainedModel(Network(architecture, 2).eval(), ("real", "blocky")),
        start_from=Weights("w", {"x": torch.rand(2)}, None, "MIT") if first else None,
        recipe=replace(UPDATE, batch=7),
        seed=5,
        checkpoint=tmp_path / "checkpoint.safetensors",
    )
    sent = pickle.loads(pickle.dumps(step))
    assert _identity(sent, "m") == _identity(step, "m") != _identity(replace(step, seed=6), "m")
    assert (sent.checkpoint, sent.train.sources) == (step.checkpoint, step.train.sources)
    assert (sent.train.crops[:] == items.crops).all()

"""What is set of an update's training by numbers: steps from epochs, and where a rate goes."""

from dataclasses import replace

import pytest

from detector.release.architecture import Architecture
from updater.candidate.recipe import TrainingSettings
from updater.settings import UpdaterSettings
from updater.training.step import FIRST, UPDATE

BARE = Architecture(backbone="none", crop_px=96)
WITH_A_BACKBONE = Architecture(backbone="lcnet_050", crop_px=96)


@pytest.mark.parametrize("usual", [FIRST, UPDATE])
@pytest.mark.parametrize("architecture", [BARE, WITH_A_BACKBONE])
def test_where_nothing_is_set_an_update_trains_as_usual(usual, architecture):
    assert TrainingSettings.of(UpdaterSettings()).recipe(usual, 1000, architecture) == usual


def test_epochs_are_steps_over_items_and_their_pseudo_forgeries():
    # 640 items and half as many pseudo-forgeries are 30 batches of 32.
    training = TrainingSettings(
        epochs=2, head_epochs=0.5, rate=0.01, batch=32, augment="flip-shift", schedule="cosine"
    )
    made = training.recipe(UPDATE, 640, WITH_A_BACKBONE)
    assert (made.backbone_steps, made.balanced_steps, made.batch) == (60, 15, 32)
    assert (made.backbone_rate, made.balanced_rate) == (0.01, UPDATE.balanced_rate)
    assert (made.flip, made.shift_px, made.schedule) == (True, 12, "cosine")


def test_without_a_backbone_they_are_the_heads():
    made = TrainingSettings(epochs=2, rate=0.01).recipe(UPDATE, 640, BARE)
    assert made == replace(UPDATE, balanced_steps=30, balanced_rate=0.01)


def test_a_second_stage_may_be_left_out_and_the_first_has_a_step_however_few_the_items():
    made = TrainingSettings(epochs=0.01, head_epochs=0).recipe(FIRST, 8, WITH_A_BACKBONE)
    assert (made.backbone_steps, made.balanced_steps) == (1, 0)


def test_what_no_training_can_be_told_is_refused_by_name(monkeypatch):
    for name, value in (("EPOCHS", "0"), ("RATE", "nan"), ("BATCH", "0"), ("RATE_SCHEDULE", "steep")):
        monkeypatch.setenv(f"FORGEWATCH_UPDATER_{name}", value)
        with pytest.raises(ValueError, match=name.lower()):
            UpdaterSettings()
        monkeypatch.delenv(f"FORGEWATCH_UPDATER_{name}")

"""How long and how fast a benchmark trains, in steps worked by hand."""

from dataclasses import replace

from detector.release.architecture import Architecture
from updater.benchmark.continual.setup import Setup
from updater.training.step import Options

WITH_A_BACKBONE = Setup(architecture=Architecture(backbone="lcnet_035"), options=Options(exposure="none"))
BARE = replace(WITH_A_BACKBONE, architecture=Architecture())


def test_epochs_are_of_the_whole_network():
    # 100 items drawn 8 times in batches of 32 are 25 steps.
    recipe = replace(WITH_A_BACKBONE.trained_epochs(8), batch=32).recipe(100, first=True)
    assert (recipe.backbone_steps, recipe.batch) == (25, 32)
    # The head's 93 times as many draws are 290.6 steps, which are fewer than the least, 300.
    assert recipe.balanced_steps == 300


def test_without_a_backbone_they_are_of_what_there_is():
    assert replace(BARE.trained_epochs(8), batch=32).recipe(100, first=True).balanced_steps == 25
    assert BARE.trained_epochs(0.1).recipe(100, first=True).balanced_steps == 1


def test_pseudo_forgeries_are_drawn_beside_the_items():
    forged = replace(WITH_A_BACKBONE.trained_epochs(8), batch=32, options=Options())
    assert forged.recipe(100, first=True).backbone_steps == round(25 * 1.3)
    assert forged.recipe(100, first=False).backbone_steps == round(25 * 1.5)


def test_a_rate_for_the_first_task_and_one_for_later_ones():
    rates = [
        [
            (one.backbone_rate, one.balanced_rate)
            for one in (s.recipe(100, first=True), s.recipe(100, first=False))
        ]
        for s in (WITH_A_BACKBONE, *(replace(s, rates=(1e-3, 1e-4)) for s in (WITH_A_BACKBONE, BARE)))
    ]
    assert rates == [
        [(3e-3, 2e-3), (1e-3, 2e-3)],
        [(1e-3, 2e-3), (1e-4, 2e-3)],
        [(3e-3, 1e-3), (1e-3, 1e-4)],
    ]

"""Published settings by name, and how long and how fast a benchmark trains, in steps worked by hand."""

from dataclasses import fields, replace

import pytest

from deploy.cli.learning import Learning, setup_of
from detector.release.manifest import Architecture
from updater.benchmark.continual.presets import PRESETS
from updater.benchmark.continual.setup import Setup
from updater.benchmark.learners.task_tokens import TaskTokens
from updater.training.step import Options


def chosen(name):
    return Learning(**PRESETS[name].options, device="cpu")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_of_options_that_there_are_and_says_what_differs(name):
    assert PRESETS[name].options.keys() <= {field.name for field in fields(Learning)}
    assert PRESETS[name].differs
    setup_of(chosen(name))


# Of 6,400 images CDDB's batches of 32 are 200 an epoch; rates are those of the first task and of later ones.
@pytest.mark.parametrize(
    ("name", "epochs", "rates"),
    [
        ("cddb-lucir", 40, (1e-4, 1e-4)),
        ("cddb-icarl", 30, (1e-4, 1e-4)),
        ("cddb-lrcil", 20, (1e-3, 1e-4)),
        ("cddb-nscil", 12, (1e-3, 1e-4)),
        # Its own rates are of 512 images.
        ("cddb-dytox", 50, (1e-4 * 32 / 512, 5e-4 * 32 / 512)),
    ],
)
def test_training_is_as_long_and_as_fast_as_published(name, epochs, rates):
    setup = setup_of(chosen(name))
    recipes = [setup.recipe(6400, first=first) for first in (True, False)]
    assert [recipe.backbone_steps for recipe in recipes] == [200 * epochs] * 2
    assert [recipe.balanced_steps for recipe in recipes] == [0, 0]
    assert tuple(recipe.backbone_rate for recipe in recipes) == pytest.approx(rates)
    assert all(recipe.flip for recipe in recipes)
    assert (setup.memory, setup.architecture.crop_px, setup.architecture.forensic) == (1500, 224, False)


def test_dytoxs_network_has_the_published_size():
    setup = setup_of(chosen("cddb-dytox"))
    network = TaskTokens(setup.architecture, [(0, 2)])
    blocks = network.backbone.whole.blocks
    assert (len(blocks), blocks[0].attn.v.out_features, blocks[0].attn.num_heads) == (8, 768, 16)
    assert network.attention.heads == 16
    assert network.attention.mlp[0].out_features == 4 * 768
    assert network.tokens[0].shape == (768,)
    assert network.head.weight.shape == (2, 768)


# Of 5,000 images, a step of CIFAR-100 at ten classes, batches of 128 are 39 an epoch.
@pytest.mark.parametrize(
    ("learner", "schedule", "decay"),
    [("icarl", "tenths", 2e-4), ("bic", "tenths", 2e-4), ("wa", "tenths", 2e-4), ("foster", "cosine", 5e-4)],
)
def test_opencils_training_is_as_published(learner, schedule, decay):
    small, large = (setup_of(chosen(f"opencil-{name}")) for name in (learner, f"imagenet-{learner}"))
    recipe = small.recipe(5000, first=False)
    assert recipe.backbone_steps == pytest.approx(39 * 170, rel=0.01)
    assert (recipe.optimizer, recipe.backbone_rate, recipe.schedule) == ("sgd", 0.1, schedule)
    assert (recipe.weight_decay, recipe.balanced_steps, recipe.batch) == (decay, 0, 128)
    assert (recipe.flip, recipe.shift_px, large.recipe(5000, first=False).shift_px) == (True, 4, 0)
    assert (small.memory, small.architecture.crop_px, small.architecture.backbone) == (
        2000,
        32,
        "resnet32_cifar",
    )
    assert (large.memory, large.architecture.crop_px, large.architecture.backbone) == (
        20_000,
        224,
        "resnet18",
    )


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
    assert rates == [[(3e-3, 2e-3), (1e-3, 2e-3)], [(1e-3, 2e-3), (1e-4, 2e-3)], [(3e-3, 1e-3), (1e-3, 1e-4)]]

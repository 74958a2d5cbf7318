"""The newcomer's way: what is counted, of whom, and that no photograph lies on two sides."""

import dataclasses
import json
from dataclasses import fields, replace
from typing import get_args, get_type_hints

import numpy as np
import pytest
from makers import make_run, values

from deploy.cli.learning import Learning, setup_of
from detector.release.manifest import Architecture, GateParameters, Term
from updater.benchmark.continual.newcomer import draws_of, outcome
from updater.benchmark.continual.presets import NAMES, PRESETS, differences
from updater.benchmark.continual.scoring import ODIN
from updater.benchmark.continual.setup import Setup
from updater.benchmark.data.tasks import OutlierSet, hold_back
from updater.benchmark.learners.methods import LEARNERS
from updater.benchmark.learners.task_tokens import TaskTokens
from updater.benchmark.rejection.methods import HEADS, POST_HOC
from updater.benchmark.report.outcome import Value
from updater.benchmark.report.report import report_json, report_markdown, report_page
from updater.benchmark.report.results import (
    Figures,
    PowerShare,
    RejectionScores,
    Unseen,
    WithinSource,
    measure_within,
)
from updater.benchmark.report.table import SETS
from updater.candidate.evaluate import Calls
from updater.data.training_data import LabelledCrops
from updater.training.step import Options

GATE = GateParameters(
    terms={"energy": Term(median=0, scale=1, weight=1)}, clip=6, unknown_threshold=3, fake_threshold=0.5
)


def judged(*items):
    """Items as (source, family, label, named, unknown score), each a group of its own."""
    sources, families, labels, named, scores = zip(*items, strict=True)
    n, unknown = len(items), np.array(scores, np.float32)
    groups = tuple(f"group-{number}" for number in range(n))
    crops = np.zeros((n, 1, 1, 3), np.uint8)
    media = LabelledCrops(groups, families, sources, groups, crops, np.arange(n + 1))
    return media, Calls(np.array(labels), np.array(named), unknown, np.abs(unknown - 5), unknown)


BEFORE = judged(
    ("phone", "phone/real", "unknown", "blended", 9),
    ("phone", "phone/real", "real", "blended", 1),
    ("gan", "gan/real", "unknown", "blended", 5),
    ("gan", "gan/fake", "unknown", "blended", 6),
    ("gan", "gan/fake", "real", "blended", 2),
    ("", "real", "real", "blended", 0),
    ("", "real", "fake", "blended", 1),
    ("", "blended", "fake", "blended", 1),
    ("", "blended", "fake", "inpainted", 1),
)
AFTER = judged(
    ("phone", "phone/real", "fake", "blended", 1),
    ("phone", "phone/real", "real", "blended", 1),
    ("gan", "gan/real", "real", "blended", 1),
    ("gan", "gan/fake", "real", "blended", 0),
    ("gan", "gan/fake", "real", "blended", 2),
    ("", "real", "unknown", "blended", 4),
    ("", "real", "real", "blended", 1),
    ("", "blended", "unknown", "blended", 5),
    ("", "blended", "fake", "blended", 1),
)


def runs_of(*ways):
    outcomes = (outcome((GATE, GATE), *before, after[1], draws_of(before[0])) for before, after in ways)
    changes = [{"benchmark": "newcomer", "outcome": of} for of in outcomes]
    return [make_run(seed, Figures()).model_copy(update=of) for seed, of in enumerate(changes)]


def report(*ways):
    return json.loads(report_json(runs_of(*ways)))


def test_each_share_is_of_its_own_items():
    found = report((BEFORE, AFTER))
    assert found["each"][0]["about"]["unknown_thresholds"] == [3, 3]
    means = {name: figure["mean"] for name, figure in found["figures"].items()}
    names = [name.removesuffix("_before") for name in means if name.endswith("_before")]
    assert {name: (means[f"{name}_before"], means[f"{name}_after"]) for name in names} == {
        "others_unknown": (pytest.approx(2 / 3), 0),
        "others_fake": (0, pytest.approx(1 / 3)),
        "others_not_real": (pytest.approx(2 / 3), pytest.approx(1 / 3)),
        "forgeries_not_real": (0.5, 0),
        "forgeries_auc": (0.5, pytest.approx(0.5)),
        "forgeries_energy_auc": (pytest.approx(1 / 3), pytest.approx(0.5)),
        "own_reals_unknown": (0, 0.5),
        "own_reals_fake": (0.5, 0),
        "known_fakes_not_real": (1, 1),
        "known_fakes_unknown": (0, 0.5),
        "known_fakes_named": (0.5, 0.5),
    }


def test_a_source_has_its_own_figures_of_what_it_holds():
    of = report((BEFORE, AFTER))["families"]
    assert set(of) == {"phone", "gan"}
    shares = ("others_unknown", "others_fake", "others_not_real")
    assert set(of["phone"]) == {f"{name}_{when}" for name in shares for when in ("before", "after")}
    assert of["phone"]["others_not_real_after"]["mean"] == 0.5
    assert of["gan"]["others_not_real_after"]["mean"] == 0
    aucs = [of["gan"][f"{name}_before"] for name in ("forgeries_auc", "forgeries_energy_auc")]
    assert [(figure["mean"], figure["n"]) for figure in aucs] == [(0.5, 3), (1, 3)]


def test_how_far_sources_lie_apart_stands_beside_what_images_say():
    found = report((BEFORE, AFTER))
    means = [of["others_not_real_after"]["mean"] for of in found["families"].values()]
    between = {"n": len(means), "mean": np.mean(means), "sd": np.std(means, ddof=1)}
    assert found["between_families"]["others_not_real_after"] == pytest.approx(between)


def test_the_page_has_a_table_of_sources():
    page = report_page(runs_of((BEFORE, AFTER)), [])
    assert "by source" in page
    assert "by family" not in page
    assert "half of the new sources" in page


def test_seeds_are_averaged_and_an_interval_holds_the_mean():
    found = report((BEFORE, AFTER), (AFTER, BEFORE))
    assert found["seeds"] == [0, 1]
    figure = found["figures"]["others_not_real_before"]
    assert figure["mean"] == pytest.approx(0.5)
    low, high = figure["interval"]
    assert low <= figure["mean"] <= high
    assert figure["n"] == 3


def test_a_photographs_copies_lie_in_one_half_and_a_seed_deals_them_anew(labelled):
    items = labelled({"phone/real": 12, "gan/real": 8})
    groups = tuple(f"{name}-{number // 2}" for number, name in enumerate(items.families))
    items = dataclasses.replace(items, groups=groups, sources=tuple(f[:-5] for f in items.families))
    dealt = set()
    for seed in range(5):
        named, others = hold_back(items, 0.5, seed)
        assert not set(named.groups) & set(others.groups)
        assert named.counts() == {"gan/real": 4, "phone/real": 6}
        dealt.add(named.ids)
    assert len(dealt) > 1


# Each outlier set on its own, as OpenCIL has it.
def test_each_outlier_set_is_measured_alone_and_near_and_far_have_means(stream, labelled, tmp_path, start):
    sets = tuple(
        OutlierSet(name, labelled({f"{name}/posterised": count}, seed=seed), distance=distance)
        for name, count, seed, distance in zip(
            ("large", "small", "other"), (12, 3, 6), (90, 91, 92), ("near", "near", "far"), strict=True
        )
    )
    two = replace(stream, tasks=stream.tasks[:2])
    ((one, _),) = start(replace(two, outliers=sets), tmp_path / "all")
    alone = {}
    for outlier_set in sets:
        ((found, _),) = start(replace(two, outliers=(outlier_set,)), tmp_path / outlier_set.name)
        alone[outlier_set.name] = found.figures.unseen
        assert found.figures.each_set == found.figures.unseen
    rows = alone | {label: getattr(one.figures, part) for part, label in SETS}
    assert one.outcome.outlier_sets == {"fused": {name: values(of) for name, of in rows.items()}}
    figures = one.figures
    for name in ("auc", "fpr95", "ap", "caught_deployed"):
        of_each = {outlier_set: getattr(found, name) for outlier_set, found in alone.items()}
        assert getattr(figures.each_set, name) == pytest.approx(np.mean(list(of_each.values())))
        assert getattr(figures.near, name) == pytest.approx((of_each["large"] + of_each["small"]) / 2)
        assert getattr(figures.far, name) == of_each["other"]
    # Pooled, the large set counts for more.
    assert figures.unseen.auc != pytest.approx(figures.each_set.auc)


def test_the_report_has_each_outlier_set_and_the_means_over_them():
    sets = {"cifar": Unseen(auc=0.75, fpr95=0.5, ap=0.25), "svhn": Unseen(auc=0.5)}
    told = {"fused": {name: values(one) for name, one in sets.items()}}
    means = {"each_set": Unseen(auc=0.625), "near": Unseen(auc=0.75), "far": Unseen(auc=0.5)}
    runs = [make_run(seed, Figures(**means), outlier_sets=told) for seed in (0, 1)]
    written = json.loads(report_json(runs))
    assert written["each"][1]["outlier_sets"]["fused"]["cifar"]["fpr95"] == 0.5
    means = [written["figures"][f"{sets}.auc"]["mean"] for sets in ("each_set", "near", "far")]
    assert means == [0.625, 0.75, 0.5]
    markdown = report_markdown(runs)
    assert "| fused | cifar | 0.750 ± 0.000 | 0.500 ± 0.000 | 0.250 ± 0.000 |" in markdown
    assert "| AUC, near sets | 0.750 ± 0.000 |" in markdown
    assert "cifar" not in report_markdown([make_run(0, Figures())])


def test_fakes_stand_against_the_reals_of_their_own_source_and_against_no_others():
    # Against all known media the fakes would look perfectly new: so does their source.
    nothing = np.zeros(0, np.float32)
    own_reals, fakes = np.array([5, 7], np.float32), np.array([6, 8, 4, 9], np.float32)
    found = measure_within(RejectionScores(np.zeros(9, np.float32), fakes, own_reals, nothing, nothing))
    assert found.auc == pytest.approx((1 + 2 + 0 + 2) / 8)
    assert found.caught_at_5 == pytest.approx(2 / 4)  # those above 7, below which 95 % of two reals lie


def run(seed, power):
    within = WithinSource(auc=0.6 + seed / 10, caught_at_5=0.2)
    return make_run(
        seed,
        Figures(within_source=within, lone_source_auc=0.8, power=PowerShare(share=power, low=0, high=1)),
        rejection_within_source={"fused": values(within)},
        drawn={"power.share": tuple(np.linspace(power - 0.1, power + 0.1, 1001))},
    )


def test_the_report_has_them_with_the_interval_of_the_mean_power_over_the_seeds():
    told = json.loads(report_json([run(0, 0.4), run(1, 0.5)]))
    figures = told["figures"]
    within = figures["within_source.auc"]
    assert (within["mean"], within["sd"]) == pytest.approx((0.65, 0.1 / 2**0.5))
    assert figures["within_source.caught_at_5"]["mean"] == pytest.approx(0.2)
    assert figures["lone_source_auc"]["mean"] == pytest.approx(0.8)
    assert figures["power.share"]["mean"] == pytest.approx(0.45)
    assert figures["power.share"]["interval"] == pytest.approx([0.355, 0.545])
    assert told["each"][1]["rejection_within_source"]["fused"]["auc"] == pytest.approx(0.7)


def test_the_report_has_each_family_and_how_far_families_lie_apart():
    def run(gan):
        of = {"gan": gan, "diffusion": 0.9}
        return {name: {"within_source.auc": Value(value=auc, n=40)} for name, auc in of.items()}

    runs = [make_run(seed, Figures(), families=run(0.6 + seed / 10)) for seed in (0, 1)]
    told = json.loads(report_json(runs))
    assert told["families"]["gan"]["within_source.auc"]["mean"] == pytest.approx(0.65)
    assert told["families"]["gan"]["within_source.auc"]["n"] == 40
    between = told["between_families"]["within_source.auc"]
    assert between == pytest.approx({"n": 2, "mean": 0.775, "sd": 0.25 / 2**0.5})
    assert "| mean, ± between rows | 0.775 ± 0.177 |" in report_markdown(runs)


def test_a_run_without_families_left_out_has_none_of_them():
    told = json.loads(report_json([make_run(0, Figures())]))["figures"]
    assert told["power.share"]["mean"] is None
    assert told["within_source.auc"]["mean"] is None


# Published settings by name, and how long and how fast a benchmark trains, in steps worked by hand.
def chosen(name):
    return Learning(**PRESETS[name].options, device="cpu")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_of_options_that_there_are_and_says_what_differs(name):
    assert PRESETS[name].options.keys() <= {field.name for field in fields(Learning)}
    assert PRESETS[name].differs
    setup_of(chosen(name))


def test_the_names_that_options_may_have_are_those_of_the_tables():
    kinds = get_type_hints(Options)
    assert set(NAMES["rejection"]) == {*POST_HOC, ODIN, *HEADS}
    assert set(NAMES["learner"]) == set(LEARNERS)
    assert NAMES["scheme"] == ("bc", "mc", *(f"mt:{name}" for name in get_args(kinds["aggregate"])))
    assert all(NAMES[name] == get_args(kinds[name]) for name in ("distilled", "exposure"))


def test_the_differences_of_a_preset_follow_from_the_options():
    for preset, given, there, absent in (
        ("cddb-lucir", {"checkpoint": "timm"}, "native crops of 224 px", "begins at random"),
        ("cddb-lucir", {"crop_px": 64}, "--crop-px 64; there 224", "crops of 224 px"),
        ("cddb-lucir", {"sequence": "long"}, "on LONG it has 50", "--epochs"),
        ("cddb-lucir", {"scheme": "bc"}, "cross-entropy is all: --distillation 0", "first task"),
        ("cddb-icarl", {"scheme": "mc"}, "there it is: --distillation 1", "the paper does"),
        ("cddb-icarl", {}, "the paper does: --distillation 1", "there it is"),
        ("cddb-lucir", {"sequence": "long", "epochs": 50.0}, "--epochs 50.0; there 40.0", "on LONG"),
        ("opencil-wa", {"rejection": "msp"}, "--rejection msp; there energy", "VOS"),
    ):
        options = {"sequence": "easy", "base": 10, "increment": 10} | vars(chosen(preset)) | given
        text = "; ".join(differences(PRESETS[preset], options))
        assert (there in text, absent in text) == (True, False), text


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
    network = TaskTokens(setup_of(chosen("cddb-dytox")).architecture, [(0, 2)])
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
    shapes = [(of.memory, of.architecture.crop_px, of.architecture.backbone) for of in (small, large)]
    assert shapes == [(2000, 32, "resnet32_cifar"), (20_000, 224, "resnet18")]


WITH_A_BACKBONE = Setup(architecture=Architecture(backbone="lcnet_035"), options=Options(exposure="none"))
BARE = replace(WITH_A_BACKBONE, architecture=Architecture())


# 100 items drawn 8 times in batches of 32 are 25 steps; pseudo-forgeries are drawn beside them.
@pytest.mark.parametrize(
    ("setup", "first", "steps"),
    [
        # The head's 93 times as many draws are 290.6 steps, which are fewer than the least, 300.
        (WITH_A_BACKBONE.trained_epochs(8), True, (25, 300)),
        (BARE.trained_epochs(8), True, (14, 25)),
        (BARE.trained_epochs(0.1), True, (14, 1)),
        (WITH_A_BACKBONE.trained_epochs(0), True, (0, 0)),
        (replace(WITH_A_BACKBONE.trained_epochs(8), options=Options()), True, (32, 378)),
        (replace(WITH_A_BACKBONE.trained_epochs(8), options=Options()), False, (38, 436)),
    ],
)
def test_epochs_are_of_the_whole_network_or_of_what_there_is(setup, first, steps):
    recipe = replace(setup, batch=32).recipe(100, first=first)
    assert (recipe.backbone_steps, recipe.balanced_steps) == steps


def test_a_rate_for_the_first_task_and_one_for_later_ones():
    setups = WITH_A_BACKBONE, *(replace(s, rates=(1e-3, 1e-4)) for s in (WITH_A_BACKBONE, BARE))
    both = [[setup.recipe(100, first=first) for first in (True, False)] for setup in setups]
    rates = [[(one.backbone_rate, one.balanced_rate) for one in of] for of in both]
    assert rates == [[(3e-3, 2e-3), (1e-3, 2e-3)], [(1e-3, 2e-3), (1e-4, 2e-3)], [(3e-3, 1e-3), (1e-3, 1e-4)]]

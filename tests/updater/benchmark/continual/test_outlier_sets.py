"""Each outlier set on its own, as OpenCIL has it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from makers import make_run, values

from updater.benchmark.data.tasks import OutlierSet
from updater.benchmark.report.outcome import Value
from updater.benchmark.report.report import report_json, report_markdown
from updater.benchmark.report.results import (
    Figures,
    Power,
    RejectionScores,
    Unseen,
    WithinSource,
    measure_within,
)
from updater.benchmark.report.run_folder import Run


def test_each_outlier_set_is_measured_on_its_own_and_near_and_far_ones_have_means(
    stream, labelled, tmp_path, start
):
    def outliers(name, count, seed, distance):
        return OutlierSet(name, labelled({f"{name}/posterised": count}, seed=seed), distance=distance)

    sets = (
        outliers("large", 12, 90, "near"),
        outliers("small", 3, 91, "near"),
        outliers("other", 6, 92, "far"),
    )
    two = replace(stream, tasks=stream.tasks[:2])
    ((one, _),) = start(replace(two, outliers=sets), tmp_path / "all")
    alone = {}
    for outlier_set in sets:
        ((found, _),) = start(replace(two, outliers=(outlier_set,)), tmp_path / outlier_set.name)
        alone[outlier_set.name] = found.figures.unseen
        assert found.figures.each_set == found.figures.unseen
    assert one.outcome.outlier_sets == {"fused": {name: values(found) for name, found in alone.items()}}
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
    assert (written["each_set"]["auc"], written["near"]["auc"], written["far"]["auc"]) == (0.625, 0.75, 0.5)
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


def run(seed: int, power: float) -> Run:
    within = WithinSource(auc=0.6 + seed / 10, caught_at_5=0.2)
    return make_run(
        seed,
        Figures(within_source=within, lone_source_auc=0.8, power=Power(share=power, low=0, high=1)),
        rejection_within_source={"fused": values(within)},
        drawn={"power.share": tuple(np.linspace(power - 0.1, power + 0.1, 1001))},
    )


def test_the_report_has_them_with_the_interval_of_the_mean_power_over_the_seeds():
    told = json.loads(report_json([run(0, 0.4), run(1, 0.5)]))
    assert told["within_source"]["auc"] == pytest.approx(0.65)
    assert told["within_source"]["caught_at_5"] == pytest.approx(0.2)
    assert told["lone_source_auc"] == pytest.approx(0.8)
    assert told["power"] == pytest.approx({"share": 0.45, "low": 0.355, "high": 0.545})
    assert told["sd"]["within_source"]["auc"] == pytest.approx(0.1 / 2**0.5)
    assert told["each"][1]["rejection_within_source"]["fused"]["auc"] == pytest.approx(0.7)


def test_the_report_has_each_family_and_how_far_families_lie_apart():
    def of(auc: float) -> dict[str, Value]:
        return {"within_source.auc": Value(value=auc, n=40)}

    runs = [
        make_run(seed, Figures(), families={"gan": of(0.6 + seed / 10), "diffusion": of(0.9)})
        for seed in (0, 1)
    ]
    told = json.loads(report_json(runs))
    assert told["by_family"]["gan"]["within_source.auc"]["mean"] == pytest.approx(0.65)
    assert told["by_family"]["gan"]["within_source.auc"]["n"] == 40
    between = told["between_families"]["within_source.auc"]
    assert between == pytest.approx({"families": 2, "mean": 0.775, "sd": 0.25 / 2**0.5})
    assert "| mean, ± between rows | 0.775 ± 0.177 |" in report_markdown(runs)


def test_a_run_without_families_left_out_has_none_of_them():
    told = json.loads(report_json([make_run(0, Figures())]))
    assert told["power"] == Power().model_dump()
    assert told["within_source"] == WithinSource().model_dump()

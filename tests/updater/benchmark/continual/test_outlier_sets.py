"""Each outlier set on its own, as OpenCIL has it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from makers import make_run, values

from updater.benchmark.data.tasks import OutlierSet
from updater.benchmark.report.report import report_json, report_markdown
from updater.benchmark.report.results import Figures, Unseen


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

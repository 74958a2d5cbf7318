"""The newcomer's way: what is counted, of whom, and that no photograph lies on two sides."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from makers import make_run

from detector.release.manifest import GateParameters, Term
from updater.benchmark.continual.newcomer import Verdicts, draws_of, outcome
from updater.benchmark.data.tasks import hold_back
from updater.benchmark.report.report import report_json, report_page
from updater.benchmark.report.results import Figures
from updater.benchmark.report.run_folder import Run

GATE = GateParameters(
    terms={"energy": Term(median=0, scale=1, weight=1)}, clip=6, unknown_threshold=3, fake_threshold=0.5
)


def judged(*items: tuple[str, str, str, str, float]) -> Verdicts:
    """Items as (source, family, label, named, unknown score), each a group of its own."""
    sources, families, labels, named, scores = zip(*items, strict=True)
    return Verdicts(
        families=np.array(families),
        sources=np.array(sources),
        groups=np.array([f"group-{number}" for number in range(len(items))]),
        labels=np.array(labels),
        named=np.array(named),
        unknown_score=np.array(scores, np.float32),
        energy=np.abs(np.array(scores, np.float32) - 5),
    )


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


def runs_of(*ways: tuple[Verdicts, Verdicts]) -> list[Run]:
    """The runs of as many seeds, each with what was said before and after."""
    outcomes = [outcome((GATE, GATE), before, after, draws_of(before)) for before, after in ways]
    changes = [{"benchmark": "newcomer", "outcome": of} for of in outcomes]
    return [make_run(seed, Figures()).model_copy(update=of) for seed, of in enumerate(changes)]


def report(*ways: tuple[Verdicts, Verdicts]) -> dict[str, Any]:
    """The report of these runs."""
    return json.loads(report_json(runs_of(*ways)))


def test_each_share_is_of_its_own_items() -> None:
    found = report((BEFORE, AFTER))
    assert found["unknown_thresholds"] == [[3, 3]]
    assert {name: (of["before"]["mean"], of["after"]["mean"]) for name, of in found["whole"].items()} == {
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


def test_a_source_has_its_own_figures_of_what_it_holds() -> None:
    of = report((BEFORE, AFTER))["by_source"]
    assert set(of) == {"phone", "gan"}
    assert set(of["phone"]) == {"others_unknown", "others_fake", "others_not_real"}
    assert of["phone"]["others_not_real"]["after"]["mean"] == 0.5
    assert of["gan"]["others_not_real"]["after"]["mean"] == 0
    for name in ("forgeries_auc", "forgeries_energy_auc"):
        assert of["gan"][name]["after"]["items"] == 3
    aucs = [of["gan"][name]["before"]["mean"] for name in ("forgeries_auc", "forgeries_energy_auc")]
    assert aucs == [0.5, 1]


def test_how_far_sources_lie_apart_stands_beside_what_images_say() -> None:
    found = report((BEFORE, AFTER))
    means = [of["others_not_real"]["after"]["mean"] for of in found["by_source"].values()]
    assert found["between_sources"]["others_not_real"]["after"] == {
        "sources": len(means),
        "mean": pytest.approx(np.mean(means)),
        "sd": pytest.approx(np.std(means, ddof=1)),
    }


def test_the_page_has_a_table_of_sources() -> None:
    page = report_page(runs_of((BEFORE, AFTER)), [])
    assert "by source" in page
    assert "by family" not in page
    assert "half of the new sources" in page


def test_seeds_are_averaged_and_an_interval_holds_the_mean() -> None:
    found = report((BEFORE, AFTER), (AFTER, BEFORE))
    assert found["seeds"] == 2
    figure = found["whole"]["others_not_real"]["before"]
    assert figure["mean"] == pytest.approx(0.5)
    assert figure["low"] <= figure["mean"] <= figure["high"]
    assert figure["items"] == 6


def test_a_photographs_copies_lie_in_one_half_and_a_seed_deals_them_anew(labelled) -> None:
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

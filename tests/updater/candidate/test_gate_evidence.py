import numpy as np
import pytest

from updater.candidate.evaluate import Calls
from updater.candidate.gate_evidence import behind_gates, flips, forgetting, real_groups
from updater.candidate.gates import FORGOTTEN, ITEMS_SHOWN, REALS_FAKE, REALS_UNKNOWN, naming
from updater.data.training_data import LabelledCrops, Splits

KINDS = ["real"] * 4 + ["blend"] * 3 + ["gan"] * 3


def items_of(families, groups=None, sources=None):
    count = len(families)
    return LabelledCrops(
        ids=tuple(f"item-{i}" for i in range(count)),
        families=tuple(families),
        sources=tuple(sources or ["web"] * count),
        groups=tuple(groups or [f"group-{i}" for i in range(count)]),
        crops=np.zeros((count, 1, 1, 3), np.uint8),
        starts=np.arange(count + 1),
    )


def calls_of(said, unknown=None, fake=None):
    """What a model says: real, unknown, or the family that it calls fake."""
    named = np.array([name if name not in ("real", "unknown") else "blend" for name in said])
    labels = np.array([name if name in ("real", "unknown") else "fake" for name in said])
    scores = [np.zeros(len(said)) if of is None else np.array(of, float) for of in (unknown, fake)]
    return Calls(labels, named, scores[0], np.zeros(len(said)), scores[1])


def test_behind_each_gate_are_its_items_and_their_sources_the_worst_first():
    items = items_of(KINDS, sources=["trip", "trip", "web", "web", *["web"] * 6])
    said = ["unknown", "unknown", "blend", "real", "gan", "real", "blend", "gan", "blend", "real"]
    after = calls_of(said, unknown=[2, 3, 0, 0, *[0] * 6], fake=[0, 0, 0.7, 0, 0.9, 0.1, 0.8, 0.9, 0.6, 0.2])
    before = calls_of(["real"] * 4 + ["blend", "blend", "real", "real", "real", "real"])
    found = behind_gates(items, before, after, new=("gan",), old=("blend",))
    assert {name: of.items for name, of in found.items()} == {
        REALS_UNKNOWN: ("item-1", "item-0"),
        REALS_FAKE: ("item-2",),
        naming("gan"): ("item-9", "item-8"),
        FORGOTTEN: ("item-5", "item-4"),
    }
    assert found[REALS_UNKNOWN].sources == {"trip": 2}


def test_of_many_items_some_are_named_and_all_are_counted():
    items = items_of(["real"] * 20, sources=["a"] * 5 + ["b"] * 15)
    found = behind_gates(items, None, calls_of(["unknown"] * 20), (), ())[REALS_UNKNOWN]
    assert len(found.items) == ITEMS_SHOWN
    assert list(found.sources.items()) == [("b", 15), ("a", 5)]


def test_where_nothing_counts_against_a_candidate_nothing_is_behind():
    assert behind_gates(items_of(KINDS), None, calls_of(KINDS), ("blend", "gan"), ()) == {}


def test_forgetting_has_an_interval_over_groups_of_paired_differences():
    families = ["real"] * 10 + ["blend"] * 40 + ["gan"] * 40
    items = items_of(families)
    all_right = calls_of(families)
    some = calls_of(["real"] * 10 + ["unknown"] * 8 + ["blend"] * 32 + ["gan"] * 40)
    found = forgetting(items, all_right, some, ("blend", "gan"))
    assert found.by_family == {"blend": pytest.approx(0.2), "gan": 0}
    assert found.low < 0.1 < found.high
    assert found.groups == 80
    fewer = items_of(families, groups=[f"group-{i // 4}" for i in range(90)])
    together = forgetting(fewer, all_right, some, ("blend", "gan"))
    assert together.groups < 30
    assert together.high - together.low > found.high - found.low


def test_of_one_group_nothing_is_excluded_and_without_a_live_release_nothing_forgotten():
    items = items_of(["real", "blend"])
    right = calls_of(["real", "blend"])
    found = forgetting(items, right, calls_of(["real", "unknown"]), ("blend",))
    assert (found.low, found.high) == (-1, 1)
    assert forgetting(items, None, right, ()) is None


def test_flips_are_of_classes_that_both_know_the_worst_first_and_the_better_ones_are_counted():
    items = items_of(KINDS)
    before = calls_of(
        ["real", "real", "unknown", "real", "blend", "real", "blend", "blend", "real", "unknown"]
    )
    after = calls_of(
        ["unknown", "blend", "real", "real", "real", "blend", "blend", "gan", "gan", "gan"],
        fake=[0.3, 0.9, 0, 0, 0.4, 0.9, 0.9, 0.9, 0.9, 0.9],
    )
    found = flips(items, before, after, ("real", "blend"))
    assert [(flip.exemplar, flip.family, flip.before, flip.after) for flip in found.lost] == [
        ("item-1", "real", "real", "blend"),
        ("item-4", "blend", "blend", "real"),
        ("item-0", "real", "real", "unknown"),
    ]
    assert (found.items, found.won) == (7, 2)
    back = flips(items, after, before, ("real", "blend"))
    assert (len(back.lost), back.won) == (found.won, len(found.lost))
    assert flips(items, None, after, ()) is None


def test_groups_of_reals_are_counted_by_source_and_split_and_pieces_of_one_photograph_once():
    train = items_of(
        ["real"] * 4 + ["blend"], ["a", "a", "b", "c", "d"], ["web", "web", "web", "trip", "web"]
    )
    splits = Splits(train, items_of(["real"]), items_of(["blend"]))
    assert real_groups(splits) == {"trip": {"train": 1}, "web": {"train": 2, "calibration": 1}}

import json

import numpy as np
import pytest

from updater.candidate import gates
from updater.candidate.evaluate import Calls
from updater.candidate.gate_evidence import behind_gates, flips, forgetting, real_groups
from updater.candidate.gates import FORGOTTEN, ITEMS_SHOWN, REALS_FAKE, REALS_UNKNOWN, naming
from updater.candidate.report import evaluation_markdown
from updater.data.training_data import LabelledCrops, Splits
from updater.gate_records import Behind, Forgotten, Gate
from updater.records import Candidate, Caught, Evaluation, Lost, Power, Robustness, Shares
from updater.settings import UpdaterSettings

BOUNDS = UpdaterSettings()
KNOWN = ("real", "blend", "noise")


@pytest.fixture
def judged(make_evaluation):
    """Makes the evaluation of a child that learnt gan: shares named of the families before and after."""

    def judge(named_before=(0.9, 0.9), named=(0.9, 0.9), gan=0.9, groups=1000, **fields):
        evaluation = make_evaluation((*KNOWN, "gan"), "a" * 64, KNOWN)

        def with_shares(performance, named):
            shares = {
                name: of.model_copy(update={"groups": groups, "named": named.get(name, of.named)})
                for name, of in performance.classes.items()
            }
            return performance.model_copy(update={"classes": shares})

        changed = {
            "before": with_shares(evaluation.before, dict(zip(KNOWN[1:], named_before, strict=True))),
            "after": with_shares(evaluation.after, dict(zip(KNOWN[1:], named, strict=True)) | {"gan": gan}),
        }
        return evaluation.model_copy(update=changed | fields)

    return judge


def gate_of(evaluation, name, bounds=BOUNDS):
    return next(gate for gate in gates.make_gates(bounds, evaluation) if gate.name == name)


def power_of(groups=20, passed=(), **families):
    caught = {name: Caught(items=20, share=of, groups=groups, passed=passed) for name, of in families.items()}
    return Power(share=sum(families.values()) / len(families), low=0, high=1, families=caught)


def robustness_of(lost):
    """What the gate looks at: by how much a candidate fell; None of a live release."""
    return Robustness(items={}, undistorted={}, distorted={}, lost=lost)


def test_forgetting_is_the_mean_loss_in_points_over_the_old_families_alone(judged):
    assert gate_of(judged((0.90, 0.80), (0.80, 0.84), gan=0.10), gates.FORGOTTEN).value == pytest.approx(3.0)


def test_a_gate_holds_where_its_whole_interval_does_breaks_where_none_does_else_is_not_shown(judged):
    """The bound is 5 points. An end may equal it on the good side alone."""
    for low, high, state in (
        (0.01, 0.05, "holds"),
        (0.01, 0.0501, "not shown to hold"),
        (0.05, 0.08, "not shown to hold"),
        (0.0501, 0.08, "broken"),
    ):
        forgotten = Forgotten(low=low, high=high, groups=40, by_family={"blend": 0.3, "noise": 0.1})
        gate = gate_of(judged((0.9, 0.9), (0.86, 0.86), forgotten=forgotten), gates.FORGOTTEN)
        assert (gate.state, gate.holds, gate.groups) == (state, state == "holds", 40)
        assert Gate.model_validate_json(gate.model_dump_json()) == gate
        assert json.loads(gate.model_dump_json())["state"] == state
    assert "[5.01 to 8] of 40 groups" in gate.format(".4g")


def test_a_gate_of_an_older_release_is_shown_as_its_interval_says_and_not_as_it_was_counted_then():
    older = {"name": gates.POWER, "value": 11.5, "bound": 10, "holds": True, "low": 6.8, "high": 16}
    assert Gate.model_validate(older).state == "not shown to hold"


@pytest.mark.parametrize("groups", [4, 40, 400, 4000])
@pytest.mark.parametrize(
    ("share", "bound"), [(0.0, 0.06), (0.05, 0.06), (0.25, 0.06), (0.75, 0.5), (0.4, 0.5)]
)
def test_with_as_many_groups_as_it_names_a_gate_is_decided_with_half_it_is_not(judged, share, bound, groups):
    def gate(groups):
        return gates._share("name", share, bound, groups, at_least=bound == 0.5)

    first = gate(groups)
    assert (first.decides is None) == (first.state != "not shown to hold")
    if first.decides:
        state = "holds" if (share < bound) == (bound < 0.5) else "broken"
        assert gate(groups + first.decides).state == state
        assert gate(max(groups, (groups + first.decides) // 2)).state == "not shown to hold"
        assert f"about {first.decides} more held-back groups" in first.status()


def test_a_share_at_its_very_bound_is_decided_by_no_number_of_groups(judged):
    gate = gate_of(judged(gan=0.5, groups=40), gates.naming("gan"))
    assert gate.status() == "not shown to hold: no number of items would decide it"


def test_a_candidate_that_no_longer_knows_an_old_family_is_an_error_and_no_pass(judged):
    evaluation = judged()
    classes = {name: of for name, of in evaluation.after.classes.items() if name != "noise"}
    after = evaluation.after.model_copy(update={"classes": classes})
    with pytest.raises(KeyError):
        gates.make_gates(BOUNDS, evaluation.model_copy(update={"after": after}))


def test_a_family_that_sums_alone_answer_for_is_not_measured_and_none_with_held_back_items_is_excused(judged):
    evaluation = judged((0.90, 0.80), (0.80, 0.84), carried=("noise",))
    after = {name: of for name, of in evaluation.after.classes.items() if name != "noise"}
    lacking = evaluation.after.model_copy(update={"classes": after})
    for held, found in ((0, 10.0), (3, None)):
        items = {"train": {}, "calibration": {}, "test": {"noise": held}}
        one = evaluation.model_copy(update={"items": items, "after": lacking})
        if found is None:
            with pytest.raises(KeyError, match="noise"):
                gates.make_gates(BOUNDS, one)
        else:
            assert gate_of(one, gates.FORGOTTEN).value == pytest.approx(found)


def test_no_old_family_is_an_error_and_no_pass(judged):
    with pytest.raises(ValueError, match="nothing to forget"):
        gates.make_gates(BOUNDS, judged(new=(*KNOWN[1:], "gan")))


def test_power_may_rise_freely():
    (rises,) = gates.keeps_power(power_of(500, blend=0.6), power_of(500, blend=0.9), 10)
    assert (rises.value, rises.state) == (pytest.approx(-30), "holds")


def test_power_that_fell_beyond_its_bound_is_never_shown_as_holding():
    """15 points, bound 10: broken with 500 groups a side, open with 20."""
    for groups, state in ((20, "not shown to hold"), (500, "broken")):
        after = power_of(groups, blend=0.25, noise=0.25)
        (gate,) = gates.keeps_power(power_of(groups, blend=0.4, noise=0.4), after, 10)
        assert (gate.value, gate.state, gate.groups) == (pytest.approx(15), state, 2 * groups)
        assert gate.low < 15 < gate.high


def test_power_is_compared_on_the_families_that_both_left_out_since_one_more_may_be_harder():
    before, after = power_of(blend=0.5, sharpen=0.7), power_of(blend=0.4, sharpen=0.8, inpaint=0.0)
    (gate,) = gates.keeps_power(before, after, 5)
    assert gate.value == pytest.approx(0)


def test_a_live_release_whose_power_is_not_known_has_no_power_to_lose():
    assert gates.keeps_power(None, power_of(blend=0.1), 5) == ()


@pytest.mark.parametrize("after", [None, power_of(sharpen=0.5)])
def test_what_was_not_measured_is_a_finding_that_says_so_and_survives_being_written(judged, after):
    evaluation = judged()
    parts = {
        "before": evaluation.before.model_copy(update={"power": power_of(blend=0.8)}),
        "after": evaluation.after.model_copy(update={"power": after}),
    }
    evaluation = evaluation.model_copy(update=parts)
    made = gates.make_gates(BOUNDS, evaluation)
    gate = next(gate for gate in made if gate.name == gates.POWER)
    assert (gate.state, gate.value, gate.format(".3f")) == ("not shown to hold", None, "not measured")
    assert "could not be measured" in gate.mends
    written = Evaluation.model_validate_json(evaluation.model_copy(update={"gates": made}).model_dump_json())
    assert written.gates == made


def test_what_is_lost_under_distortions_says_of_how_many_items():
    after = robustness_of(Lost(share=0.081, low=0.05, high=0.112, reals=80, forgeries=72))
    (gate,) = gates.keeps_robustness(robustness_of(None), after, 5)
    assert (gate.value, gate.state) == (8.1, "not shown to hold")
    assert gate.format(".3f") == "8.1 [5.0 to 11.2] of 80 real and 72 forged items"
    (further,) = gates.keeps_robustness(robustness_of(None), after, 4.99)
    (within,) = gates.keeps_robustness(robustness_of(None), after, 11.2)
    assert (further.state, within.state) == ("broken", "holds")


def test_robustness_that_was_measured_of_live_alone_does_not_hold():
    for after in (None, robustness_of(None)):
        (gate,) = gates.keeps_robustness(robustness_of(None), after, 5)
        assert not gate.holds
    assert gates.keeps_robustness(None, robustness_of(None), 5) == ()


def test_each_new_family_has_a_gate_of_its_own_so_that_a_good_one_cannot_hide_a_bad_one(judged):
    evaluation = judged((0.9, 0.9), (0.95, 0.30), new=KNOWN[1:], before=None)
    missed = [gate.name for gate in gates.make_gates(BOUNDS, evaluation) if not gate.holds]
    assert missed == [gates.naming("noise")]


def test_a_finding_says_value_interval_n_bound_the_worst_items_behind_it_and_what_mends_it(judged):
    lost = Lost(share=0.2, low=0.1, high=0.3, reals=80, forgeries=80, items=("blurred",))
    shares = Shares(items=60, groups=50, real=0.6, fake=0, unknown=0.4, named=0.5)
    evaluation = judged(
        gan=0.1,
        groups=50,
        items={"train": {"gan": 11}},
        real_groups={"holiday": {"train": 30, "calibration": 3}, "archive": {"calibration": 90}},
        forgotten=Forgotten(low=0.2, high=0.4, groups=50, by_family={"blend": 0.1, "noise": 0.5}),
        behind={
            gates.REALS_UNKNOWN: Behind(
                items=tuple(f"real-{n}" for n in range(20)), sources={"holiday": 19, "archive": 1}
            ),
            gates.naming("gan"): Behind(items=("gan-1",), sources={"holiday": 1}),
        },
    )
    before, after = evaluation.before, evaluation.after
    evaluation = evaluation.model_copy(
        update={
            "before": before.model_copy(
                update={"power": power_of(500, blend=0.8, noise=0.8), "robustness": robustness_of(None)}
            ),
            "after": after.model_copy(
                update={
                    "classes": after.classes | {"real": shares},
                    "power": power_of(500, ("passed-1",), blend=0.7, noise=0.2),
                    "robustness": robustness_of(lost),
                }
            ),
        }
    )
    made = gates.make_gates(BOUNDS, evaluation)
    candidate = Candidate(
        digest="d", evaluation_digest="e", parent="a" * 64, update=2, classes=evaluation.classes, gates=made
    )
    found = {gate.name: gate for gate in candidate.findings}
    assert set(found) == {REALS_UNKNOWN, naming("gan"), FORGOTTEN, gates.POWER, gates.ROBUSTNESS}
    unknown = found[gates.REALS_UNKNOWN]
    assert unknown.items == tuple(f"real-{n}" for n in range(gates.ITEMS_SHOWN))
    assert "19 of holiday, 1 of archive" in unknown.mends
    # 17 more groups to calibrate on, of which one real in five is one.
    assert "about 85 more of holiday." in unknown.mends
    assert "it learnt from 11" in found[gates.naming("gan")].mends
    assert "noise lost most (50 points)" in found[gates.FORGOTTEN].mends
    assert "noise lost most (60 points)" in found[gates.POWER].mends
    assert found[gates.POWER].items == ("passed-1", "passed-1")
    assert found[gates.ROBUSTNESS].items == ("blurred",)
    page = evaluation_markdown(evaluation.model_copy(update={"gates": made}))
    listed = [line for line in page.splitlines() if line.startswith("- **")]
    assert len(listed) == len(found)
    for gate, line in zip(candidate.findings, listed, strict=True):
        parts = (gate.name, gate.format(".4g"), f"bound {gate.bound:g}", gate.mends)
        assert all(part in line for part in parts)


def test_without_an_interval_nothing_is_shown_to_hold(judged):
    for evaluation in (
        judged(groups=None, forgotten=None),
        judged((0.9, 0.9), (0.8, 0.8), groups=None, forgotten=None),
    ):
        made = gates.make_gates(BOUNDS, evaluation)
        assert [(gate.state, gate.holds) for gate in made if gate.value <= gate.bound] != []
        assert not any(gate.holds for gate in made)


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
    all_right = calls_of(families)
    some = calls_of(["real"] * 10 + ["unknown"] * 8 + ["blend"] * 32 + ["gan"] * 40)
    found = forgetting(items_of(families), all_right, some, ("blend", "gan"))
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
        ["real"] * 2 + ["unknown", "real", "blend", "real"] + ["blend"] * 2 + ["real", "unknown"]
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
    train = items_of(["real"] * 4 + ["blend"], "aabcd", ["web", "web", "web", "trip", "web"])
    splits = Splits(train, items_of(["real"]), items_of(["blend"]))
    assert real_groups(splits) == {"trip": {"train": 1}, "web": {"train": 2, "calibration": 1}}

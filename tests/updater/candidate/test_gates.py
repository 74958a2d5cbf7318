import pytest
from hypothesis import given
from hypothesis import strategies as st

from updater.candidate import gates
from updater.candidate.findings import findings_markdown
from updater.gate_records import Behind, Forgotten
from updater.records import Candidate, Caught, Evaluation, Lost, Power, Robustness, Shares
from updater.settings import UpdaterSettings

BOUNDS = UpdaterSettings()
KNOWN = ("real", "blend", "noise")


@pytest.fixture
def judged(make_evaluation):
    """Makes the evaluation of a child that learnt gan: shares named of the families before and after."""

    def judge(named_before=(0.9, 0.9), named=(0.9, 0.9), gan=0.9, groups=None, **fields):
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


def power_of(groups=None, passed=(), **families):
    caught = {
        name: Caught(items=20, share=share, groups=groups, passed=passed) for name, share in families.items()
    }
    return Power(share=sum(families.values()) / len(families), low=0, high=1, families=caught)


def robustness_of(lost):
    """What the gate looks at: by how much a candidate fell; None of a live release."""
    return Robustness(items={}, undistorted={}, distorted={}, lost=lost)


def test_forgetting_is_the_mean_loss_in_points_over_the_old_families_alone(judged):
    gate = gate_of(judged((0.90, 0.80), (0.80, 0.84), gan=0.10), gates.FORGOTTEN)
    assert gate.value == pytest.approx(3.0)
    assert gate.holds


def test_without_an_interval_five_points_forgotten_hold_and_one_hundredth_more_does_not(judged):
    assert gate_of(judged((0.90, 0.5), (0.80, 0.5)), gates.FORGOTTEN).holds
    assert not gate_of(judged((0.90, 0.5), (0.7999, 0.5)), gates.FORGOTTEN).holds


def test_a_bound_is_broken_only_beyond_the_interval_whose_end_may_equal_it(judged):
    for low, holds in ((0.05, True), (0.0501, False)):
        forgotten = Forgotten(low=low, high=0.3, groups=40, by_family={"blend": 0.3, "noise": 0.1})
        gate = gate_of(judged((0.9, 0.9), (0.6, 0.8), forgotten=forgotten), gates.FORGOTTEN)
        assert (gate.value, gate.holds, gate.groups) == (pytest.approx(20), holds, 40)
    assert "[5.01 to 30] of 40 groups" in gate.said(".4g")


def test_few_groups_let_a_share_pass_that_many_do_not(judged):
    for groups, holds in ((4, True), (40, False)):
        gate = gate_of(judged(gan=0.25, groups=groups), gates.naming("gan"))
        assert (gate.holds, gate.groups) == (holds, groups)
        assert gate.low < gate.value < gate.high
        shares = Shares(items=groups, groups=groups, real=0.75, fake=0, unknown=0.25, named=0.75)
        evaluation = judged()
        classes = evaluation.after.classes | {"real": shares}
        after = evaluation.after.model_copy(update={"classes": classes})
        gate = gate_of(evaluation.model_copy(update={"after": after}), gates.REALS_UNKNOWN)
        assert gate.holds == holds


def test_a_candidate_that_no_longer_knows_an_old_family_is_an_error_and_no_pass(judged):
    evaluation = judged()
    classes = {name: of for name, of in evaluation.after.classes.items() if name != "noise"}
    after = evaluation.after.model_copy(update={"classes": classes})
    with pytest.raises(KeyError):
        gates.make_gates(BOUNDS, evaluation.model_copy(update={"after": after}))


def test_no_old_family_is_an_error_and_no_pass(judged):
    with pytest.raises(ValueError, match="nothing to forget"):
        gates.make_gates(BOUNDS, judged(new=(*KNOWN[1:], "gan")))


def test_power_may_fall_by_its_bound_and_may_rise_freely():
    (falls,) = gates.keeps_power(power_of(blend=0.5), power_of(blend=0.4), 10)
    (falls_further,) = gates.keeps_power(power_of(blend=0.5), power_of(blend=0.3999), 10)
    (rises,) = gates.keeps_power(power_of(blend=0.6), power_of(blend=0.9), 10)
    assert falls.holds
    assert not falls_further.holds
    assert rises.value == pytest.approx(-30)


def test_power_that_fell_within_what_its_groups_allow_is_no_finding():
    """15 points: chance with 20 groups a side, none with 500. An older live release says no groups."""
    for groups, holds in ((20, True), (500, False)):
        after = power_of(groups, blend=0.25, noise=0.25)
        (gate,) = gates.keeps_power(power_of(groups, blend=0.4, noise=0.4), after, 10)
        assert (gate.value, gate.holds, gate.groups) == (pytest.approx(15), holds, 2 * groups)
        assert gate.low < 15 < gate.high
    (older,) = gates.keeps_power(power_of(blend=0.4, noise=0.4), after, 10)
    assert older.low is not None


def test_power_is_compared_on_the_families_that_both_left_out_since_one_more_may_be_harder():
    (gate,) = gates.keeps_power(
        power_of(blend=0.5, sharpen=0.7), power_of(blend=0.4, sharpen=0.8, inpaint=0.0), 5
    )
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
    assert (gate.holds, gate.value, gate.said(".3f")) == (False, None, "not measured")
    assert "could not be measured" in gate.mends
    written = Evaluation.model_validate_json(evaluation.model_copy(update={"gates": made}).model_dump_json())
    assert written.gates == made


def test_what_is_lost_under_distortions_counts_as_far_as_it_is_beyond_chance_and_the_gate_says_of_how_many():
    live, after = (
        robustness_of(None),
        robustness_of(Lost(share=0.081, low=0.05, high=0.112, reals=80, forgeries=72)),
    )
    (gate,) = gates.keeps_robustness(live, after, 5)
    assert (gate.value, gate.holds) == (5.0, True)
    assert gate.measured == "8.1 [5.0 to 11.2] of 80 real and 72 forged items"
    assert gate.said(".3f") == "5.000 (8.1 [5.0 to 11.2] of 80 real and 72 forged items)"
    (further,) = gates.keeps_robustness(live, after, 4.99)
    assert not further.holds


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
    shares = Shares(items=60, groups=50, real=0.5, fake=0.1, unknown=0.4, named=0.5)
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
    assert set(found) == {
        gates.REALS_UNKNOWN,
        gates.naming("gan"),
        gates.FORGOTTEN,
        gates.POWER,
        gates.ROBUSTNESS,
    }
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
    listed = findings_markdown(made)
    assert len(listed) == len(found)
    for gate, line in zip(candidate.findings, listed, strict=True):
        assert all(
            part in line for part in (gate.name, gate.said(".4g"), f"bound {gate.bound:g}", gate.mends)
        )


def test_an_evaluation_from_before_there_were_intervals_gives_the_gates_that_it_holds(judged):
    evaluation = judged()
    assert [(gate.low, gate.high, gate.items, gate.mends) for gate in evaluation.gates] == [
        (None, None, (), None)
    ] * len(evaluation.gates)
    new = {"low", "high", "groups", "items", "mends"}
    fields = {"real_groups": True, "forgotten": True, "behind": True, "gates": {"__all__": new}}
    older = Evaluation.model_validate_json(evaluation.model_dump_json(exclude=fields))
    assert gates.make_gates(BOUNDS, older) == older.gates == evaluation.gates


shares = st.tuples(*[st.floats(0, 1)] * 2)


@given(before=shares, after=shares, bound=st.floats(-100, 100))
def test_a_gate_without_an_interval_holds_exactly_where_its_own_value_and_bound_say_so(
    make_evaluation, before, after, bound
):
    def forgets(first, second):
        evaluation = make_evaluation(KNOWN, "a" * 64, KNOWN)

        def parts(performance, named):
            classes = dict(performance.classes)
            for name, share in zip(KNOWN[1:], named, strict=True):
                classes[name] = classes[name].model_copy(update={"named": share})
            return performance.model_copy(update={"classes": classes})

        changed = {"before": parts(evaluation.before, first), "after": parts(evaluation.after, second)}
        bounds = UpdaterSettings(max_forgotten_points=bound)
        return gate_of(evaluation.model_copy(update=changed), gates.FORGOTTEN, bounds)

    gate = forgets(before, after)
    assert gate.holds == (gate.value <= gate.bound)
    assert gate.value == pytest.approx(-forgets(after, before).value, abs=1e-6)

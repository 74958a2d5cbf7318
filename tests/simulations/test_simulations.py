"""The simulations: their figures follow from the product's own functions, and the commands of simulate.py."""

import json
import math

import drift_power
import drift_replay
import near_duplicates
import numpy as np
import pytest
import shift_bursts
import shift_power
from drift_replay import ScoresError, changed, read_statistics, replay_json, unchanged
from estimate_coverage import CASES, measure
from memory_costs import costs_json, generated, measure_all
from near_duplicates import COPIES, pairs_joined
from pictures import drawn, hashes_of
from rollout_bets import ITEM, RULES, Group
from rollout_items import FAMILIES, Challenger, Stream
from rollout_power import Setting, rollout_json, row_of, simulate, summed
from simulate import app
from typer.testing import CliRunner
from verdicts import make_item, make_verdict

from deploy.rollouts.evidence import RolloutEvidence
from deploy.rollouts.tallies import STATES
from detector.release.manifest import FEATURE_WIDTH


@pytest.mark.slow
def test_both_kinds_of_data_are_measured_at_each_size_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    said = []
    found = list(measure_all([300, 600], 0, lambda *at: said.append(at)))
    assert [(one.items, one.kind) for one in found] == [
        (300, "clustered"),
        (300, "spread"),
        (600, "clustered"),
        (600, "spread"),
    ]
    assert all(one.recall > 0.99 for one in found)  # of vectors in fp16
    assert all(min(one.add_s, one.search_s, one.build_s, one.start_s) > 0 for one in found)
    assert all(one.snapshot_bytes > one.items * FEATURE_WIDTH * 2 for one in found)
    assert said[0] == ("clustered, rows", 300, 300)
    assert list(tmp_path.iterdir()) == []
    assert json.loads(costs_json(found, 0))["sizes"][3]["items"] == 600


@pytest.mark.slow
def test_generated_features_follow_from_the_seed_and_kinds_stand_apart():
    np.testing.assert_array_equal(generated("clustered", 7)(20), generated("clustered", 7)(20))
    spread, clustered = (generated(kind, 1)(400) for kind in ("spread", "clustered"))
    assert _nearest(clustered) < 0.8 * _nearest(spread) * clustered.std() / spread.std()


def _nearest(rows):
    between = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    np.fill_diagonal(between, np.inf)
    return float(np.median(between.min(1)))


def test_what_shifts_further_takes_fewer_items_and_the_closed_form_is_dprime_squared():
    found = list(shift_power.measure(200, 6, 0, (1.0,), (0.7, 0.9), lambda *at: None))
    # At 0.90 d' is sqrt(2) * 1.2816 = 1.812, so (4 / 1.812) ** 2 = 4.87; at 0.70 it is 0.7416.
    assert [round(one.closed_form, 1) for one in found] == [29.1, 4.9]
    weak, strong = found
    assert strong.median < weak.median
    assert strong.low <= strong.median <= strong.high
    assert json.loads(shift_power.shift_json(found, [], [], [], 200, 6, 0))["power"][1]["item_auc"] == 0.9


def test_streams_without_an_alarm_are_null_in_the_report():
    none = shift_power.Power(0.1, 0.6, 1250.0, 700.0, math.inf, math.inf)
    row = json.loads(shift_power.shift_json([none], [], [], [], 200, 6, 0))["power"][0]
    assert (row["low"], row["median"], row["high"]) == (700.0, None, None)


@pytest.mark.slow
def test_the_smaller_the_forged_share_the_more_items_it_takes():
    shares = (1.0, 0.3, 0.1)
    all_forged, some, few = shift_power.measure(600, 8, 0, shares, (0.9,), lambda *at: None)
    assert all_forged.median < some.median < few.median
    # A tenth is shifted by 0.181 on average, so (4 / 0.181) ** 2 = 487.
    assert few.closed_form == pytest.approx(487, abs=1)


def test_bursts_of_scores_are_correlated_within_and_only_there(monkeypatch):
    scores = shift_bursts.in_bursts(60_000, 6, 0.5, np.random.default_rng(0))
    assert scores.std() == pytest.approx(1, abs=0.02)
    # Of neighbours five of six are of one burst; of items three apart, three of six.
    for lag, of_one_burst in ((1, 5 / 6), (3, 3 / 6), (6, 0)):
        lagged = np.corrcoef(scores[:-lag], scores[lag:])[0, 1]
        assert lagged == pytest.approx(0.5 * of_one_burst, abs=0.02)
    monkeypatch.setattr(shift_bursts, "BURSTS", ((20, 0.5),))
    monkeypatch.setattr(shift_bursts, "ITEMS", 150)
    (found,) = shift_bursts.measure(4, 0, lambda *at: None)
    assert (found.alarms, found.low) == (0, 0.0)
    assert found.high == pytest.approx(1 - 0.025**0.25)  # Clopper and Pearson where none of four did


@pytest.mark.slow
def test_a_drift_by_more_takes_fewer_items_either_way_and_later_tests_take_longer(monkeypatch):
    monkeypatch.setattr(drift_power, "SHIFTS", (-1.0, 2.0))
    monkeypatch.setattr(drift_power, "NUMBERS", (1, 200))
    first_low, first_high, later_low, later_high = drift_power.drift_power(300, 6, 0, lambda *at: None)
    assert first_high.median < first_low.median < later_low.median < math.inf
    assert first_high.within_100 == later_high.within_100 == 1
    report = json.loads(shift_power.shift_json([], [], [first_low], [], 300, 6, 0))
    assert report["drift_power"][0]["shift"] == -1


def test_bursts_without_a_drift_are_counted(monkeypatch):
    monkeypatch.setattr(drift_power, "ITEMS", 300)
    monkeypatch.setattr(drift_power, "SEEDS", 2)
    monkeypatch.setattr(drift_power, "BURSTS", ((6, 0.5),))
    monkeypatch.setattr(drift_power, "MOST", 200)
    long, bursts = drift_power.false_drifts(3, 0, lambda *at: None)
    assert (long.items, long.streams, long.alarms) == (300, 2, 0)
    assert (bursts.items, bursts.streams, bursts.alarms, bursts.length) == (200, 3, 0, 6)


# The simulation of rollouts is that of the product: the same items show the same.
BAD = Challenger("bad", reals_lost=0.21, families_lost=0.1)
GOOD = Challenger("good")


def silent(*_): ...


@pytest.mark.parametrize("challenger", [BAD, GOOD])
@pytest.mark.parametrize("sources", [1, 3])
def test_the_same_items_show_the_same_as_in_a_rollout(sources, challenger):
    rng, units = np.random.default_rng(5), 60
    kinds = challenger.kinds()
    shares = np.array([share for _, share in kinds])
    counts = rng.poisson(
        Stream(sources=sources).scenes(2.5)[None, :, None] * shares, (units, sources, len(kinds))
    )
    counts = np.minimum(counts, 9)
    groups = [Group.of(net, 1, sources) for net in (False, True)]
    evidence = RolloutEvidence(FAMILIES, FAMILIES, {}, [f"camera {source}" for source in range(sources)])
    says = np.array([[[rule.say(item) == x for item, _ in kinds] for x in ITEM] for rule in RULES], np.int64)
    number = 0
    for unit in range(units):
        for group in groups:
            group.begin_step(np.array([unit == 30]))
        evidence.steps_began([305.0] if unit >= 30 else [])
        for source in range(sources):
            for group in groups:
                three = np.einsum("rsk,mk->rms", says[group.places], counts[unit, source][None])
                group.take(three, source)
            for kind, (item, _) in enumerate(kinds):
                for _ in range(counts[unit, source, kind]):
                    number += 1
                    named = {"id": f"media-0-{number}", "source": f"camera {source}"}
                    evidence.add(item.comparison.model_copy(update=named), 10.0 * unit + 6)
        evidence.close(10.0 * (unit + 1) + 2)
        shown = np.empty((len(RULES), 1), np.int8)
        for group in groups:
            shown[group.places] = group.shown()
        states = [STATES[code] for code in shown[:, 0]]
        found = [each for each in evidence.tallies if each.rule.alpha]
        if not any(tally.failed for tally in found):
            assert [tally.check({}).state for tally in found] == states
    for group in groups:
        for row, place in enumerate(group.places):
            tally = found[place]
            at = int(np.searchsorted(tally.bets.bounds, tally.rule.tolerated))
            np.testing.assert_allclose(group.all.log_above[row], tally.bets.log_above[at])
            np.testing.assert_allclose(group.all.log_below[row], tally.bets.log_below[at])


@pytest.mark.slow
def test_bad_challengers_are_rolled_back_and_good_ones_go_live():
    bad = summed(setting := Setting(Stream(), BAD), simulate(setting, 20, np.random.default_rng(0), silent))
    assert (bad.rolled_back, bad.promoted) == (20, 0)
    assert bad.ended_min < 2
    ten = Setting(Stream(sources=10), GOOD)
    good = summed(ten, simulate(ten, 20, np.random.default_rng(0), silent))
    assert (good.rolled_back, good.promoted) == (0, 20)
    assert good.passed_min < 20 < good.ended_min  # three steps of the canary of ten minutes at least
    assert json.loads(rollout_json([good], 0))["found"][0]["promoted"] == 20
    assert row_of(good)[:4] == ("good", 10, 1, "0 of 20")


@pytest.mark.slow
def test_one_that_turns_bad_where_it_answers_first_is_rolled_back_there():
    turns = Setting(Stream(sources=10), GOOD, turned=BAD)
    ended = simulate(turns, 20, np.random.default_rng(0), silent)
    assert {(each.turn, each.step) for each in ended} == {("rollback", 1)}
    assert np.median([each.items for each in ended]) < 300


def quiet(*_):
    pass


@pytest.fixture
def scored(tmp_path):
    """Writes what `forgewatch score --json` prints of so many files."""

    def write(name, count, shift):
        rng = np.random.default_rng(count)
        lines = []
        for n, (score, energy, distance) in enumerate(rng.normal(size=(count, 3)) + shift):
            parts = None if n % 2 else {"embedding_novelty": float(distance)}
            verdict = make_verdict(
                make_item(n), unknown_score=float(score), energy=float(energy), unknown_parts=parts
            )
            lines.append(json.dumps({"file": f"{n}.jpg", "verdict": verdict.model_dump(mode="json")}))
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


@pytest.mark.slow
def test_ones_own_verdicts_raise_no_alarm_and_another_cameras_do_within_100(scored, monkeypatch):
    monkeypatch.setattr(drift_replay, "ITEMS", 300)
    own, other = read_statistics(scored("own", 200, 0.0)), read_statistics(scored("other", 50, 2.0))
    assert np.isnan(own[1::2, 2]).all()
    steady = unchanged(own, 0, quiet)
    assert (steady.pictures, steady.items, steady.alarms, steady.streams) == (200, 300, 0, 5)
    found = list(changed(own, other, 400, 3, 0, quiet))
    assert [(each.share, each.number) for each in found] == [(1.0, 1), (1.0, 2), (0.5, 1), (0.5, 2)]
    assert found[0].within_100 == 1
    assert found[0].median < found[2].median
    same = list(changed(own, own, 400, 3, 0, quiet))
    assert {each.median for each in same} == {float("inf")}
    assert json.loads(replay_json(steady, same))["changed"][0]["median"] is None


@pytest.mark.parametrize("text", ["", "{}\n", "no JSON\n", '{"verdict": {"label": "real"}}\n'])
def test_a_file_that_has_no_verdicts_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "scores"
    path.write_text(text)
    with pytest.raises(ScoresError, match="what forgewatch score --json print") as refused:
        read_statistics(path)
    assert "\n" not in str(refused.value)


# The commands of simulate.py.
def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.slow
def test_the_memorys_index_is_measured_and_the_figures_are_written(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert "recall@10" in run("memory", "--items", "200", "--report", tmp_path / "found.json").output
    sizes = json.loads((tmp_path / "found.json").read_text())["sizes"]
    assert [(size["items"], size["kind"]) for size in sizes] == [(200, "clustered"), (200, "spread")]
    assert all(size["recall"] > 0.99 for size in sizes)  # of vectors in fp16


def test_drift_is_measured_on_ones_own_scores_and_a_file_that_has_none_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("drift_replay.ITEMS", 150)
    rng = np.random.default_rng(0)
    for name, deviations in (("own", 0.0), ("other", 3.0)):
        verdicts = (
            make_verdict(make_item(n), unknown_score=float(score), energy=float(score))
            for n, score in enumerate(rng.normal(size=100) + deviations)
        )
        lines = (json.dumps({"verdict": verdict.model_dump(mode="json")}) for verdict in verdicts)
        (tmp_path / name).write_text("\n".join(lines))
    words = ["shift", "--before", "200", "--streams", "1", "--report", tmp_path / "found"]
    ended = run(*words, "--scores", tmp_path / "own", "--other", tmp_path / "other")
    assert "100 verdicts of your own" in ended.output
    found = json.loads((tmp_path / "found").read_text())
    assert found["unchanged"]["alarms"] == 0
    assert [each["within_100"] for each in found["changed"]] == [1, 1, 1, 1]
    assert "what forgewatch score --json prints" in str(run(*words, "--scores", tmp_path / "found").exception)


def test_a_stated_interval_holds_what_is_right_of_unseen_sources_and_under_drift_too(monkeypatch):
    monkeypatch.setattr("estimate_coverage.LOOKS", 1)  # the last, which is all that is asserted
    found = list(measure(10, 400, 0, lambda *_: None))
    assert {c.case for c in found} == set(CASES)
    assert sum(c.covered for c in found) >= 0.9 * sum(c.stated for c in found)
    assert all(c.covered >= 0.9 * c.stated for c in found if c.of == "all")
    few = [c for c in measure(10, 12, 0, lambda *_: None) if c.of != "all"]
    assert sum(c.stated for c in few) == 0, "of a dozen labelled items no share is told"


def test_copies_join_and_different_pictures_do_not(tmp_path):
    for seed in range(8):
        drawn(seed).save(tmp_path / f"{seed}.png")
    (tmp_path / "notes.txt").write_text("no picture")
    shares = near_duplicates.measure(tmp_path, lambda *_: None)
    assert (shares.pictures, shares.flat, shares.pairs, shares.joined) == (8, 0, 28, 0)
    assert {name for name, joined in shares.copies.items() if joined < 8} <= {"trimmed by 5 % at one corner"}


def test_pairs_are_counted_whichever_came_first_and_mirrored_too():
    pictures = [drawn(1), COPIES["mirrored"](drawn(1)), drawn(2), COPIES["JPEG q70"](drawn(1))]
    assert pairs_joined([hashes_of(picture) for picture in pictures]) == 3

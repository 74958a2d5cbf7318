"""The simulation of rollouts is that of the product: the same items show the same."""

import json

import numpy as np
import pytest
from rollout_bets import ITEM, RULES, Group
from rollout_items import FAMILIES, Challenger, Stream
from rollout_power import Setting, rollout_json, row_of, simulate, summed

from deploy.rollouts.evidence import RolloutEvidence
from deploy.rollouts.tallies import STATES

BAD = Challenger("bad", reals_lost=0.21, families_lost=0.1)
GOOD = Challenger("good")


def silent(*_: object) -> None: ...


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

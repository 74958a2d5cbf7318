"""How often, and when, rollouts are rolled back or pass, by simulation with the rollout's own rules."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray
from rollout_bets import ITEM, RULES, Group
from rollout_items import Challenger, Stream
from scipy.stats import binomtest

from deploy.releases.ledger import Event, Move
from deploy.releases.trial import after
from deploy.rollout_records import Check, Plan, Trial, Turn
from deploy.rollouts.controller import INTERVAL_S
from deploy.rollouts.evidence import SLACK_S, UNIT_S, history_check
from deploy.rollouts.moves import RolloutFacts, decide
from deploy.rollouts.tallies import ONLY_ABOVE, STATES
from updater.progress import Progress

_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Setting:
    """Rollouts of one kind. turned: what the challenger is like from its first answer on; None: no other."""

    stream: Stream
    challenger: Challenger
    turned: Challenger | None = None
    forged: Challenger | None = None
    """as whom the first source has the challenger look, or the new names: all, or all but one"""


@dataclass(frozen=True)
class Outcome:
    """How a rollout ended. turn: promote, rollback, inconclusive.

    passed_min: until all checks held, None where they never did. ended_min and items: minutes and shared
    items until the end, since it began, or since its first answer where the challenger turns then. answers:
    by the challenger, in its last step.
    """

    turn: str
    step: int
    passed_min: float | None
    ended_min: float
    items: int
    answers: int


@dataclass
class _Rollout:
    """One rollout as it goes on."""

    trial: Trial
    offset_s: float
    """how far the first unit had come when it began"""
    events: int = 1
    passed_min: float | None = None
    stepped: bool = False
    """a step of the canary begins with the next unit"""
    shared: int = 0
    answers: int = 0
    items: int = 0
    counted_from: datetime = field(default=_BEGAN)
    ended: Outcome | None = None


def simulate(setting: Setting, rollouts: int, rng: np.random.Generator, progress: Progress) -> list[Outcome]:
    """Return how so many rollouts ended."""
    trial = Trial(release="b" * 64, champion="a" * 64, plan=Plan(), began=_BEGAN, since=_BEGAN)
    going = [_Rollout(trial, float(offset)) for offset in rng.uniform(0, UNIT_S, rollouts)]
    ended: list[Outcome] = []
    unit, known, names = 0, setting.stream.sources, setting.stream.names
    groups = [Group.of(net, rollouts, known, bool(names)) for net in (False, True)]
    says = _says(setting.challenger)
    both = setting.challenger, setting.turned or setting.challenger
    shares = np.array([[_shares(each)] * (known + names) for each in both])
    if setting.forged:
        shares[:, slice(known or 1, None) if names else 0] = _shares(setting.forged)
    while going:
        seconds = np.full(len(going), float(UNIT_S))
        if not unit:
            seconds -= [each.offset_s for each in going]
        for group in groups:
            group.begin_step(np.array([each.stepped for each in going]))
        counts = _draw(rng, setting.stream, going, shares, seconds)
        # New names have one unit together, or one each where no source has a history.
        units = np.add.reduceat(counts, range(known + bool(names)), 1) if known else counts
        for source in range(units.shape[1]):
            for group in groups:
                group.take(np.einsum("rsk,mk->rms", says[group.places], units[:, source]), min(source, known))
        unit += 1
        shown = np.empty((len(RULES), len(going)), np.int8)
        for group in groups:
            shown[group.places] = group.shown()
        items = counts.sum(axis=(1, 2))
        for place, each in enumerate(going):
            about = shown[:, place].tobytes(), int(items[place]), unit, rng, setting.turned is not None
            _go_on(each, *about, known=bool(known))
        on = np.array([each.ended is None for each in going])
        if not on.all():
            ended += [each.ended for each in going if each.ended is not None]
            going = [each for each in going if each.ended is None]
            groups = [group.keep(on) for group in groups]
            progress(setting.challenger.name, len(ended), rollouts)
    return ended


def _shares(challenger: Challenger) -> list[float]:
    return [share for _, share in challenger.kinds()]


def _says(challenger: Challenger) -> NDArray[np.int64]:
    """[rules, 3, kinds]: whether a kind says 1, 0 or -1 by a rule."""
    kinds = [item for item, _ in challenger.kinds()]
    return np.array([[[rule.say(item) == x for item in kinds] for x in ITEM] for rule in RULES], np.int64)


def _draw(
    rng: np.random.Generator,
    stream: Stream,
    going: Sequence[_Rollout],
    shares: NDArray[np.float64],
    seconds: NDArray[np.float64],
) -> NDArray[np.int64]:
    """[rollouts, sources, kinds], how many items both releases score."""
    shared = np.array([each.trial.shares[0] for each in going])
    turned = np.array([int(bool(each.trial.steps)) for each in going])
    scenes = (shared * seconds)[:, None] * stream.scenes(1.0)
    drawn = rng.poisson(scenes[:, :, None] * shares[turned])
    return np.asarray(drawn * stream.burst, np.int64)


_CHECKS: dict[bytes, tuple[Check, ...]] = {}


def _checks(shown: bytes, known: bool) -> tuple[Check, ...]:
    if not known:
        return (history_check(None, 0), *_checks(shown, True))
    if shown not in _CHECKS:
        _CHECKS[shown] = tuple(
            Check(
                name=rule.name,
                counted=0,
                items=0,
                units=0,
                low=1.0 if code == ONLY_ABOVE else 0.0,
                high=1.0,
                tolerated=rule.tolerated,
                state=STATES[code],
            )
            for rule, code in zip(RULES, shown, strict=True)
        )
    return _CHECKS[shown]


def _go_on(
    each: _Rollout, shown: bytes, items: int, unit: int, rng: np.random.Generator, turns: bool, known: bool
) -> None:
    """Count one unit's items, and make the turn that follows by the rollout's own rules."""
    shared, answered = each.trial.shares
    each.items += items
    each.shared += items
    each.answers += int(rng.binomial(items, answered / shared)) if answered else 0
    now = _BEGAN + timedelta(seconds=unit * UNIT_S - each.offset_s + SLACK_S + INTERVAL_S)
    checks = _checks(shown, known)
    minutes = (now - each.counted_from).total_seconds() / 60
    if each.passed_min is None and all(check.state in ("passed", "not measured") for check in checks):
        each.passed_min = minutes
    facts = RolloutFacts(checks, each.shared, each.answers, newest=now, complete=True)
    turn = decide(each.trial, facts, now).turn
    each.stepped = turn == "step"
    if each.stepped:
        each.events += 1
        move = Move("", "step", each.trial.release, "", rollout=Turn(step=each.trial.step + 1))
        following = after(each.trial, Event(each.events, now, move, ""), each.trial.champion)
        assert following is not None
        if turns and each.trial.step == 0:
            each.counted_from, each.items = now, 0
        each.trial, each.shared, each.answers = following, 0, 0
    elif turn != "wait":
        each.ended = Outcome(turn, each.trial.step, each.passed_min, minutes, each.items, each.answers)


@dataclass(frozen=True)
class Found:
    """What became of the rollouts of a setting. Minutes and items are medians; None: none ended so.

    low, high: of the share rolled back, 95 %, Clopper and Pearson.
    """

    setting: Setting
    rollouts: int
    rolled_back: int
    low: float
    high: float
    promoted: int
    inconclusive: int
    passed_min: float
    ended_min: float
    items: float
    items_90: float
    """nine of ten ended by then"""


def measure(rollouts: int, seed: int, progress: Progress) -> Iterator[Found]:
    """Yield what becomes of so many rollouts of each of SETTINGS."""
    for setting in SETTINGS:
        yield summed(setting, simulate(setting, rollouts, np.random.default_rng(seed), progress))


def summed(setting: Setting, outcomes: Sequence[Outcome]) -> Found:
    """Sum up how rollouts of a setting ended."""
    turns = [each.turn for each in outcomes]
    back = turns.count("rollback")
    low, high = binomtest(back, len(turns)).proportion_ci(method="exact")
    passed = [np.inf if each.passed_min is None else each.passed_min for each in outcomes]
    items = [each.items for each in outcomes]
    return Found(
        setting,
        len(turns),
        back,
        float(low),
        float(high),
        turns.count("promote"),
        turns.count("inconclusive"),
        float(np.median(passed)),
        float(np.median([each.ended_min for each in outcomes])),
        float(np.median(items)),
        float(np.quantile(items, 0.9)),
    )


HEALTHY = Challenger("healthy")
_LESS = Challenger("healthy, 1 % of each family lost", families_lost=0.01, first_lost=0.01)
_BOUND = Challenger("at each bound", reals_lost=0.03, families_lost=0.1, first_lost=0.1)
_BAD = (
    Challenger("10 points of reals more", reals_lost=0.11),
    Challenger("20 points of reals more", reals_lost=0.21),
    Challenger("blind to the first family", first_lost=0.8),
)
_ALL_LOST, _NONE_LOST = (
    Challenger("most reals lost", reals_lost=0.75),
    Challenger("none lost", reals_lost=0.0),
)
_SOURCES = (1, 10)

SETTINGS = (
    *(Setting(Stream(sources=s, burst=burst), HEALTHY) for s in _SOURCES for burst in (1, 5, 20)),
    *(Setting(Stream(sources=s), _LESS) for s in _SOURCES),
    *(Setting(Stream(sources=s, burst=burst), _BOUND) for s in _SOURCES for burst in (1, 20)),
    *(Setting(Stream(sources=s), bad) for s in _SOURCES for bad in _BAD),
    *(Setting(Stream(sources=s), HEALTHY, turned=bad) for s in _SOURCES for bad in _BAD),
    *(Setting(Stream(sources=s), HEALTHY, forged=_ALL_LOST) for s in (2, 6)),
    *(Setting(Stream(sources=s), _BAD[0], forged=_NONE_LOST) for s in (2, 6)),
    *(Setting(Stream(sources=0, names=n), each) for n in (1, 10) for each in (HEALTHY, _BAD[0])),
    *(Setting(Stream(sources=s, names=20), _BAD[0], forged=_NONE_LOST) for s in (0, 1, 5)),
    *(Setting(Stream(sources=s, names=20), HEALTHY, forged=_ALL_LOST) for s in (1, 5)),
)


def row_of(found: Found) -> tuple[object, ...]:
    """A line of the table."""
    setting = found.setting
    name = setting.challenger.name if setting.turned is None else f"{setting.turned.name}, from 5 % on"
    forgers = f"{setting.stream.names} new names forge" if setting.stream.names else "one source forges"
    name += f", {forgers}: {setting.forged.name}" if setting.forged else ""
    return (
        name,
        setting.stream.sources,
        setting.stream.burst,
        f"{found.rolled_back} of {found.rollouts}",
        f"{found.low:.1%} to {found.high:.1%}",
        found.inconclusive,
        f"{found.passed_min:.1f}",
        f"{found.ended_min:.2f}",
        f"{found.items:.0f}",
        f"{found.items_90:.0f}",
    )


def rollout_json(found: Sequence[Found], seed: int) -> str:
    """All figures as JSON."""
    return json.dumps({"seed": seed, "found": [asdict(each) for each in found]}, indent=1) + "\n"

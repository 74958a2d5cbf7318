"""The checks of a challenger on shared items, and their expected results by its evaluation. Pure.

Together the checks roll a challenger back that is within all bounds in at most 1 of 100 rollouts. The
held-back items of an evaluation are no stream: a source of its own may lose more, or less.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from deploy.rollout_records import Expected
from deploy.rollouts.bets import bets_to_pass
from detector.records import Comparison, ReleaseVerdict
from memory.records import REAL
from updater.records import Evaluation

SURE = 0.9
"""A champion that is sure of a family gives at least this fake_probability."""
SLOW = 2.0
"""A release is slow on an item where it takes over so many times as long as the other one."""

ERROR = "error"


@dataclass(frozen=True)
class Shared:
    """A comparison, and a person's label of the item, real or not; None: nobody labelled it."""

    comparison: Comparison
    new: frozenset[str]
    """families that the champion does not know"""
    label: str | None = None


Say = Callable[[Shared], int | None]
"""1: it counts against the challenger. 0: it does not. -1: of a difference, against the champion. None: the
check does not look at it."""


@dataclass(frozen=True)
class Rule:
    """A check: its items, the share that it tolerates, and its part of 1 in 100.

    alpha: 0 asks for labels instead, at 1 in 1,000. net: it is a difference of two shares. by_item: to pass,
    each item is a bet of its own. rare: where too few such items come it is not measured.
    """

    name: str
    say: Say
    tolerated: float
    alpha: float
    net: bool = False
    by_item: bool = False
    rare: bool = False


REALS_LOST = "real → unknown or a known fake"
NOT_ALONE = "no source decides alone"
"""What an approver may waive beside the checks: then one source, or new names, may decide."""
REAL_TO_NEW = "real → a new family"
UNKNOWN_MORE = "unknown, more than before"
LOOK_ALPHA = 0.001


def word_of(verdict: ReleaseVerdict) -> str:
    """A release's verdict in one word: real, unknown, a family, or error."""
    if verdict.error is not None or verdict.label is None:
        return ERROR
    return (verdict.family or "fake") if verdict.label == "fake" else verdict.label


def family_check(family: str) -> str:
    """The name of the check on items that the champion is sure are of a family."""
    return f"sure {family} → real"


def rules(known: Sequence[str]) -> tuple[Rule, ...]:
    """The checks of a champion that knows these families.

    Each rule has what it tolerates, and its part of the 1 in 100.
    """
    families = tuple(
        Rule(family_check(family), _family_lost(family), 0.10, 0.004 / len(known), rare=True)
        for family in known
    )
    return (
        Rule(REALS_LOST, _real_lost, 0.03, 0.004),
        *families,
        Rule(UNKNOWN_MORE, _unknown_more, 0.03, 0.001, net=True),
        # A failure that passes here costs no answer: the champion gives it as long as the rollout lasts.
        Rule("could not score, net", _could_not, 0.005, 0.0005, net=True, by_item=True),
        Rule("over twice as slow, net", _slower, 0.05, 0.0005, net=True),
        Rule(REAL_TO_NEW, _real_to_new, 0.01, 0),
    )


def waivable(known: Sequence[str]) -> list[str]:
    """The names of checks that an approver may waive."""
    return [NOT_ALONE, *(rule.name for rule in rules(known))]


def settles(rule: Rule, shared: Shared) -> bool:
    """Whether a person said what an item is that a check asks labels of: the champion called it real, the
    challenger a new family."""
    both = _both(shared)
    return not rule.alpha and shared.label is not None and both is not None and _turned_new(both, shared)


def excuses(rule: Rule, shared: Shared) -> bool:
    """Whether an item counts against the challenger but for its label."""
    labelled = bool(rule.alpha) and shared.label is not None
    return labelled and rule.say(replace(shared, label=None)) == 1 and rule.say(shared) != 1


def _turned_new(both: tuple[str, str], shared: Shared) -> bool:
    return both[0] == "real" and both[1] in shared.new


def _both(shared: Shared) -> tuple[str, str] | None:
    champion, challenger = word_of(shared.comparison.champion), word_of(shared.comparison.challenger)
    return None if ERROR in (champion, challenger) else (champion, challenger)


def _real_lost(shared: Shared) -> int | None:
    both = _both(shared)
    if both is None or both[0] != "real" or (shared.label is not None and shared.label != "real"):
        return None
    if both[1] in shared.new:
        return None if shared.label is None else 1
    return int(both[1] != "real")


def _family_lost(family: str) -> Say:
    def say(shared: Shared) -> int | None:
        both, sure = _both(shared), shared.comparison.champion.fake_probability or 0.0
        if both is None or both[0] != family or sure < SURE or shared.label == "real":
            return None
        return int(both[1] == "real")

    return say


def _unknown_more(shared: Shared) -> int | None:
    both = _both(shared)
    return None if both is None else (both[1] == "unknown") - (both[0] == "unknown")


def _could_not(shared: Shared) -> int | None:
    champion, challenger = word_of(shared.comparison.champion), word_of(shared.comparison.challenger)
    return (challenger == ERROR) - (champion == ERROR)


def _slower(shared: Shared) -> int | None:
    if _both(shared) is None:
        return None
    champion, challenger = shared.comparison.champion.model_s, shared.comparison.challenger.model_s
    return (challenger > SLOW * champion) - (champion > SLOW * challenger)


def _real_to_new(shared: Shared) -> int | None:
    both = _both(shared)
    if both is None or both[0] != "real" or shared.label not in (None, "real"):
        return None
    turned = _turned_new(both, shared)
    return None if turned and shared.label is not None else int(turned)


def expected_of(evaluation: Evaluation) -> tuple[Expected, ...]:
    """Expected results of each check against the release before; none where the evaluation lacks them."""
    if evaluation.before is None or evaluation.before.confusion is None:
        return ()
    shares = dict(_shares(evaluation))
    expected = []
    for rule in rules([name for name in evaluation.classes[1:] if name not in evaluation.new]):
        counted, items = shares.get(rule.name, (0, 0))
        share = counted / items if items else None
        units = bets_to_pass(rule.tolerated, share or 0.0) if rule.alpha else None
        expected.append(
            Expected(
                check=rule.name,
                counted=counted,
                items=items,
                share=share,
                tolerated=rule.tolerated,
                units=units,
                asks=not rule.alpha,
            )
        )
    return tuple(expected)


def _shares(evaluation: Evaluation) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield for a check how many held-back items count against the challenger, net, and of how many."""
    before, after = evaluation.before, evaluation.after
    if before is None or before.confusion is None:
        return
    lost = evaluation.flips.lost if evaluation.flips else None
    for family, called in before.confusion.items():
        right = called.get(family, 0)
        if lost is None:
            continue
        after_them = [flip.after for flip in lost if flip.family == family]
        if family == REAL:
            new = sum(name in evaluation.new for name in after_them)
            yield REALS_LOST, (len(after_them) - new, right - new)
            yield REAL_TO_NEW, (new, right)
        else:
            yield family_check(family), (after_them.count(REAL), right)
    if after.confusion is not None and REAL in after.confusion and REAL in before.confusion:
        reals = before.confusion[REAL]
        more = after.confusion[REAL].get("unknown", 0) - reals.get("unknown", 0)
        yield UNKNOWN_MORE, (more, sum(reals.values()))

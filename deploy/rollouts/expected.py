"""What a challenger's evaluation lets its checks expect: the share beside each bound, and how much shows it.

The held-back items are no stream: a source of its own may lose more, or less. Pure.
"""

from collections.abc import Iterator

from deploy.rollout_records import Expected
from deploy.rollouts.bets import bets_to_pass
from deploy.rollouts.checks import REAL_TO_NEW, REALS_LOST, UNKNOWN_MORE, family_check, rules
from memory.records import REAL
from updater.records import Evaluation


def expected_of(evaluation: Evaluation) -> tuple[Expected, ...]:
    """What each check of the rollout against the release before may show; none where that is not told."""
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
    for what, called in before.confusion.items():
        right = called.get(what, 0)
        if lost is None:
            continue
        after_them = [flip.after for flip in lost if flip.family == what]
        if what == REAL:
            new = sum(name in evaluation.new for name in after_them)
            yield REALS_LOST, (len(after_them) - new, right - new)
            yield REAL_TO_NEW, (new, right)
        else:
            yield family_check(what), (after_them.count(REAL), right)
    if after.confusion is not None and REAL in after.confusion and REAL in before.confusion:
        reals = before.confusion[REAL]
        more = after.confusion[REAL].get("unknown", 0) - reals.get("unknown", 0)
        yield UNKNOWN_MORE, (more, sum(reals.values()))

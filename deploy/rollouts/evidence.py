"""The evidence of a rollout's comparisons: bets by check, and the table of both verdicts. Pure."""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from deploy.rollout_records import Check, Disagreement
from deploy.rollouts.checks import ERROR, NOT_ALONE, Shared, excuses, rules, settles, word_of
from deploy.rollouts.tallies import MOST_SOURCES, NEW_NAMES, CheckTally
from detector.records import Comparison
from memory.records import REAL
from updater.intervals import declared_recall
from updater.records import DeclaredRecall

UNIT_S = 10
SLACK_S = 2.0
"""A unit is bet on this long after its end: what other workers wrote in it has arrived by then."""

_FEW_ALONE, _MOST_ALONE = 3, 0.25
"""So many, and so large a share, of the items against a challenger one person may say away."""
_NO_HISTORY = (
    "no source has a history of a day and 50 items from before the rollout:"
    f" an approver who knows the sources waives {NOT_ALONE!r}"
)
_KEPT = 200
"""Items of each cell of the table that can be opened, the newest."""
_MOST_REASON_CHARS = 100
_TIMES = 4096
_BLOCK = 1024


def _doubt_single_judge(check: Check, excused: Collection[str], by_one: Collection[str]) -> Check:
    """Hold a check up that passes since one person said of many items that they do not count."""
    alone = sum(id in by_one for id in excused)
    against = check.counted + len(excused)
    if check.state not in ("passed", "not measured") or alone < _FEW_ALONE or alone <= _MOST_ALONE * against:
        return check
    why = f"one person alone judged {alone} of {against} items against it: a second must judge them too"
    return check.model_copy(update={"state": "inconclusive", "reason": why})


def history_check(waived: str | None, items: int) -> Check:
    """The check that stands beside the others where no source has a history."""
    state, why = ("inconclusive", _NO_HISTORY) if waived is None else ("waived", waived)
    counts = {"counted": items, "items": items, "units": 0, "low": 0.0, "high": 1.0, "tolerated": 1.0}
    return Check.model_validate({"name": NOT_ALONE, "state": state, "reason": why, **counts})


class RolloutEvidence:
    """The comparisons of one rollout so far, in the order in which their units ended."""

    def __init__(
        self,
        champion: Sequence[str],
        challenger: Sequence[str],
        labels: Mapping[str, str],
        known: Sequence[str] = (),
        without: Collection[str] = (),
        alone: bool = False,
    ) -> None:
        """champion, challenger: the families that they know. labels: by people, by the item's id.

        known: sources with a history, the largest first. All other names weigh as NEW_NAMES. without: sources
        that a person left out. alone: one source may decide, or new names, by a person's word.
        """
        self._known = frozenset(known[: MOST_SOURCES - 1]).difference(without, [NEW_NAMES])
        self._without = frozenset(without)
        self._new = frozenset(challenger) - frozenset(champion)
        self._labels = labels
        self.tallies = [CheckTally(rule, self._known, alone) for rule in rules(champion)]
        self._steps: Sequence[int] = ()
        self._begun = 0
        """in which units steps of the canary began, and of how many the bets know"""
        self._open: dict[tuple[int, str], list[Shared]] = {}
        self._ended = -1
        self.shared = 0
        self.left_out: Counter[str] = Counter()
        """by the reason"""
        self._ids: defaultdict[tuple[str, int], int] = defaultdict(int)
        """which offsets of a partition were seen, a bit each, by their block: days of items fit"""
        self._written: Counter[int] = Counter()
        self._answered: Counter[int] = Counter()
        """comparisons, and answers of the challenger, by the unit of time"""
        self.table: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._kept: defaultdict[tuple[str, str], deque[Comparison]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._declared = Counter[str]()
        """items that declare generation, and of how many each role's pixels say so"""
        self._times: tuple[deque[float], deque[float]] = (deque(maxlen=_TIMES), deque(maxlen=_TIMES))

    def add(self, comparison: Comparison, at_s: float) -> None:
        """Take a comparison in that was written at a Unix time, in seconds."""
        unit = int(at_s // UNIT_S)
        if unit <= self._ended:
            self.left_out["it came too late"] += 1
            return
        if self._was_seen(comparison.id):
            self.left_out["it came before"] += 1
            return
        if comparison.left_out is not None:
            self.left_out[comparison.left_out[:_MOST_REASON_CHARS]] += 1
            return
        weighs_as = comparison.source if comparison.source in self._known else NEW_NAMES
        if not self._without.isdisjoint((comparison.source, weighs_as)):
            self.left_out["a person left its source out"] += 1
            return
        self.shared += 1
        self._written[unit] += 1
        self._answered[unit] += comparison.answered == "challenger"
        word, other = word_of(comparison.champion), word_of(comparison.challenger)
        self.table[word][other] += 1
        self._kept[word, other].append(comparison)
        if comparison.declared and ERROR not in (word, other):
            self._declared.update(items=1, champion=word != REAL, challenger=other != REAL)
        for times, verdict in zip(self._times, (comparison.champion, comparison.challenger), strict=True):
            if verdict.error is None:
                times.append(verdict.model_s)
        shared = Shared(comparison, self._new, self._labels.get(comparison.id))
        of = unit, weighs_as if self._known else comparison.source
        self._open.setdefault(of, []).append(shared)

    def steps_began(self, at_s: Sequence[float]) -> None:
        """Say when steps of the canary began, Unix time in seconds: a challenger may turn bad there."""
        self._steps = [int(at // UNIT_S) for at in at_s]

    def _was_seen(self, id: str) -> bool:
        """Whether an item, by its id of topic, partition and offset, was seen before; it is from now on."""
        partition, _, offset = id.rpartition("-")
        block, place = divmod(int(offset), _BLOCK)
        before = self._ids[partition, block]
        self._ids[partition, block] = before | 1 << place
        return bool(before >> place & 1)

    def close(self, until_s: float) -> None:
        """Bet on the units that ended before a time up to which all comparisons were read."""
        before = int((until_s - SLACK_S) // UNIT_S)
        for unit, source in sorted(key for key in self._open if key[0] < before):
            for _ in range(self._begun, sum(step <= unit for step in self._steps)):
                self._begun += 1
                for tally in self.tallies:
                    tally.begin_step()
            items = self._open.pop((unit, source))
            for tally in self.tallies:
                tally.labels += sum(settles(tally.rule, item) for item in items)
                tally.excused.update(item.comparison.id for item in items if excuses(tally.rule, item))
                if words := [word for item in items if (word := tally.rule.say(item)) is not None]:
                    tally.take(source if source in self._known else NEW_NAMES, words)
        self._ended = max(self._ended, before - 1)

    def checks(self, waived: Mapping[str, str], by_one: Collection[str] = frozenset()) -> tuple[Check, ...]:
        """The state of every check now. waived: the reason by the name of each check that is not asked for.

        by_one: ids of items of which only one person's word is known, where there are several people.
        """
        checks = [_doubt_single_judge(tally.check(waived), tally.excused, by_one) for tally in self.tallies]
        return tuple(checks) if self._known else (history_check(waived.get(NOT_ALONE), self.shared), *checks)

    def contradictions(self) -> dict[str, int]:
        """How many kept items have a label that is neither release's word, by their source."""
        items = [item for this, other in self._kept for item in self.items(this, other) if item.contradicts]
        return dict(Counter(item.source for item in items))

    def items(self, champion: str, challenger: str) -> list[Disagreement]:
        """The newest items of a cell of the table, the newest first."""
        return [
            Disagreement(
                id=item.id,
                source=item.source,
                digest=item.digest,
                champion=champion,
                challenger=challenger,
                label=self._labels.get(item.id),
            )
            for item in reversed(self._kept.get((champion, challenger), ()))
        ]

    def kept_ids(self, differing: bool = False) -> frozenset[str]:
        """Ids of the items of all cells, or of those in which both scored an item and differ."""
        cells = (
            cell
            for called, cell in self._kept.items()
            if not differing or (called[0] != called[1] and ERROR not in called)
        )
        return frozenset(item.id for cell in cells for item in cell)

    def shared_since(self, at_s: float) -> int:
        """How many comparisons were written since a Unix time in seconds, to 10 seconds."""
        return sum(count for unit, count in self._written.items() if unit >= at_s // UNIT_S)

    def answered_since(self, at_s: float) -> int:
        """How many answers the challenger gave since then."""
        return sum(count for unit, count in self._answered.items() if unit >= at_s // UNIT_S)

    def declared_recalls(self) -> dict[str, DeclaredRecall]:
        """The recall of declared media by role; none before the first such item."""
        of, roles = self._declared, ("champion", "challenger")
        return {role: recall for role in roles if (recall := declared_recall(of[role], of["items"]))}

    def model_s(self) -> dict[str, tuple[float, float]]:
        """Median and 95th percentile of the newest items' seconds, by role."""
        roles = zip(("champion", "challenger"), self._times, strict=True)
        spans = {role: np.quantile(times, (0.5, 0.95)) for role, times in roles if times}
        return {role: (float(low), float(high)) for role, (low, high) in spans.items()}

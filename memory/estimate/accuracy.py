"""How accurate a release's verdicts were in the last days, over all, by class and by source."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import Connection, Row, select

from memory.estimate.audits import CANNOT_SAY
from memory.estimate.drawing import DAY_MS
from memory.estimate.intervals import Residual, correct
from memory.estimate.records import LEAST_AUDITED, Accuracy, Estimate
from memory.estimate.sums import Sum
from memory.schema import audits, estimate_sums

_MOST_SOURCES = 100


@dataclass
class _Group:
    items: int = 0
    complete: Sum = field(default_factory=Sum)
    audited: list[Residual] = field(default_factory=list)


def accuracy(connection: Connection, release: str, now_ms: int, days: int) -> Accuracy:
    """Estimate the accuracy of a release's verdicts of today and the days before; in UTC."""
    first = now_ms // DAY_MS - (days - 1)
    table = estimate_sums.c
    rows = connection.execute(select(estimate_sums).where(table.release == release, table.day >= first)).all()
    found = audits.c
    drawn = connection.execute(
        select(found.day, found.source, found.called, found.probability, found.chance, found.label).where(
            found.release == release, found.day >= first
        )
    ).all()
    # Up to there every drawn item is labelled, so that what the audit saw is no choice of a person's.
    open_day = min((row.day for row in drawn if row.label is None), default=now_ms // DAY_MS + 1)
    unaudited = {row.day for row in rows if row.lowest_chance == 0}
    whole, classes, sources = _Group(), defaultdict[str, _Group](_Group), defaultdict[str, _Group](_Group)
    unknown = 0
    complete_days = set()
    for row in rows:
        if row.called == "unknown":
            unknown += row.items
            continue
        complete = row.day < open_day and row.day not in unaudited
        if complete:
            complete_days.add(row.day)
        for group in (whole, classes[row.called], sources[row.source]):
            group.items += row.items
            if complete:
                _take(group.complete, row)
    for row in drawn:
        if row.day < open_day and row.day not in unaudited:
            for group in (whole, classes[row.called], sources[row.source]):
                group.audited.append(_residual(row))
    shown = sorted(sources, key=lambda name: (-sources[name].items, name))[:_MOST_SOURCES]
    return Accuracy(
        release=release,
        since=_at(first),
        through=_at(max(complete_days) + 1) if complete_days else None,
        unknown=unknown,
        over_all=_estimate(whole),
        classes={name: _estimate(classes[name]) for name in sorted(classes)},
        sources={name: _estimate(sources[name]) for name in shown},
    )


def _take(into: Sum, row: Row[tuple[object, ...]]) -> None:
    into.items += row.items
    into.right += row.right
    into.lowest_chance = min(into.lowest_chance, row.lowest_chance)


def _residual(row: Row[tuple[object, ...]]) -> Residual:
    if row.label == CANNOT_SAY:
        return Residual(-row.probability, 1 - row.probability, row.chance)
    residual = float(row.label == row.called) - row.probability
    return Residual(residual, residual, row.chance)


def _estimate(group: _Group) -> Estimate:
    complete, audited = group.complete, group.audited
    lacking = max(0, LEAST_AUDITED - len(audited))
    share = None if lacking else correct(complete.items, complete.right, audited, complete.lowest_chance)
    cannot_say = sum(each.low != each.high for each in audited)
    return Estimate(group.items, len(audited), cannot_say, complete.items, lacking, share)


def _at(day: int) -> datetime:
    return datetime.fromtimestamp(day * DAY_MS / 1000, UTC)

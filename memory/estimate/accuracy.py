"""How accurate a release's verdicts were in the last days, over all, by class and by source."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, select

from memory.estimate.audits import CANNOT_SAY
from memory.estimate.records import LEAST_AUDITED, Accuracy, Estimate, Share
from memory.estimate.sums import DAY_MS, Sum
from memory.schema import audits, estimate_sums
from memory.verdict_index import count_declared

LEVEL = 0.95
_LOG_40 = math.log(2 / (1 - LEVEL))
"""of each end's error, in logs"""

_STAKES = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95])


@dataclass(frozen=True)
class Residual:
    """An audited verdict's truth (1 where it was right, else 0) minus its probability to be right.

    low and high differ where a person could not say: they are those of wrong and of right.
    """

    low: float
    high: float
    chance: float
    """with which it was drawn, in (0, 1]"""


def correct(items: int, right: float, audited: Sequence[Residual], lowest_chance: float) -> Share:
    """Estimate it by probabilities that an audit corrects; holds at any time, calibrated or not.

    lowest_chance: of all items, whether drawn or not. The estimate is prediction-powered (Angelopoulos et
    al., Prediction-powered inference, 2023): the sum of the probabilities plus that of residual / chance of
    the audited. Only the draw is random: nothing is asked of the stream. Against "the residuals of all items
    sum to R" a capital is the product of 1 + G c residual / chance over the audited, times exp(-G c R), where
    c is the lowest chance. An item's factor has the mean 1 + G c residual <= exp(G c residual), so the
    capital is a supermartingale while R is true, and Ville's inequality bounds it at any time (Waudby-Smith
    and Ramdas, Estimating means of bounded random variables by betting, 2024). Each G bets an equal part.
    """
    chances = np.array([verdict.chance for verdict in audited])
    low = np.array([verdict.low for verdict in audited]) / chances
    high = np.array([verdict.high for verdict in audited]) / chances
    value = right + float((low + high).sum()) / 2
    least, most = _least(low, lowest_chance), -_least(-high, lowest_chance)
    return Share(*(min(1.0, max(0.0, count / items)) for count in (value, right + least, right + most)))


def _least(weighted: NDArray[np.float64], lowest_chance: float) -> float:
    """Return the lowest sum of all residuals that is not excluded; weighted: residual / chance (n,)."""
    capital = np.log1p(np.outer(_STAKES, lowest_chance * weighted)).sum(axis=1)

    def log_capital(total: float) -> float:
        return float(np.logaddexp.reduce(capital - _STAKES * lowest_chance * total)) - math.log(len(_STAKES))

    above, step = float(weighted.sum()), 1 / lowest_chance  # there the capital is 1 at most
    while log_capital(below := above - step) < _LOG_40:
        step *= 2
    for _ in range(60):
        middle = (below + above) / 2
        below, above = (middle, above) if log_capital(middle) >= _LOG_40 else (below, middle)
    return below


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
    columns = audits.c
    drawn = connection.execute(
        select(
            columns.day, columns.source, columns.called, columns.probability, columns.chance, columns.label
        ).where(columns.release == release, columns.day >= first)
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
    largest = sorted(sources, key=lambda name: (-sources[name].items, name))[:_MOST_SOURCES]
    return Accuracy(
        release=release,
        since=_at(first),
        through=_at(max(complete_days) + 1) if complete_days else None,
        unknown=unknown,
        over_all=_estimate(whole),
        classes={name: _estimate(classes[name]) for name in sorted(classes)},
        sources={name: _estimate(sources[name]) for name in largest},
        declared=count_declared(connection, release, first * DAY_MS),
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
    cannot_say = sum(verdict.low != verdict.high for verdict in audited)
    return Estimate(group.items, len(audited), cannot_say, complete.items, lacking, share)


def _at(day: int) -> datetime:
    return datetime.fromtimestamp(day * DAY_MS / 1000, UTC)

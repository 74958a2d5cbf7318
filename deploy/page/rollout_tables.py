"""Parts of the views of a rollout: steps, checks with their bars, both verdicts on the same items. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from deploy.page.render import percent
from deploy.release_records import LedgerEntry
from deploy.rollout_records import Check, Expected, Trial
from deploy.rollouts.bets import bets_to_pass
from deploy.rollouts.checks import ERROR
from memory.records import REAL

_BAR_PX, _BAR_FROM, _BAR_TO = 200, -0.03, 0.12
"""An interval's bar: its width, and the shares at its ends."""


def steps_of(trial: Trial, history: Sequence[LedgerEntry]) -> list[dict[str, Any]]:
    """The steps of a rollout as they are shown. history: the release's moves since the rollout began."""
    began: dict[int, datetime] = {}
    for entry in history:
        if entry.action in ("begin", "back to shadow", "inconclusive"):
            began = {0: entry.at}
        elif entry.action == "step" and entry.rollout is not None and entry.rollout.step is not None:
            began[entry.rollout.step] = entry.at
    ends = {step - 1: at for step, at in began.items()}
    return [
        {
            "share": trial.plan.canary[step - 1] if step else trial.plan.shadow,
            "shadow": not step,
            "state": "done" if step < trial.step else "now" if step == trial.step else "next",
            "began": began.get(step),
            "ended": ends.get(step),
            "until": trial.since + timedelta(minutes=trial.plan.minutes) if step == trial.step else None,
        }
        for step in range(len(trial.plan.canary) + 1)
    ]


def rows_of(
    checks: Sequence[Check], expected: Sequence[Expected] = (), minutes: float = 0.0
) -> list[dict[str, Any]]:
    """Checks as they are shown, each with its interval's bar: where it begins, how wide it is, the bound.

    expected: by the evaluation. minutes: since the rollout began, from which follows how many more it takes.
    """
    by_check = {each.check: each for each in expected}

    def place(share: float) -> float:
        inside = min(max(share, _BAR_FROM), _BAR_TO)
        return round(_BAR_PX * (inside - _BAR_FROM) / (_BAR_TO - _BAR_FROM), 1)

    return [
        {
            "check": check,
            "from": min(_BAR_PX - 2.0, place(min(check.low, check.high))),
            "wide": max(2.0, abs(place(check.high) - place(check.low))),
            "bound": place(check.tolerated),
            "said": _share_range(check),
            "expected": by_check.get(check.name),
            "minutes_more": _minutes_more(check, minutes),
        }
        for check in checks
    ]


def _minutes_more(check: Check, minutes: float) -> float | None:
    """How long until a check passes, about, where its units go on as they came; None: no one can say."""
    if check.state not in ("undecided", "not measured") or check.share is None or not minutes:
        return None
    units = bets_to_pass(check.tolerated, round(check.share, 3))
    return None if units is None else max(1.0, (units - check.units) * minutes / check.units)


def _share_range(check: Check) -> str:
    low, high = percent(check.low, 1), percent(check.high, 1)
    return f"at times under {high}, at times over {low}" if check.changed else f"{low} to {high}"


def table_of(table: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Both verdicts on the same items: rows the champion's words, columns the challenger's."""
    last = {REAL: 0, "unknown": 1, ERROR: 3}
    called = {name for row in table.values() for name in row} | set(table)
    names = sorted(called, key=lambda name: (last.get(name, 2), name))
    return {
        "names": names,
        "rows": [
            (
                name,
                [(_cell(name, other), table[name].get(other, 0), items_path(name, other)) for other in names],
            )
            for name in names
            if name in table
        ],
    }


def _cell(champion: str, challenger: str) -> str:
    """The class of a cell's style."""
    if champion == challenger:
        return "h2"
    return "w1" if REAL in (champion, challenger) else ""


def links_of(
    table: Mapping[str, Mapping[str, int]], champion: str, others: Sequence[str]
) -> list[tuple[str, int, str]]:
    """Of what a champion's word became: the challenger's word, how many items, and where they are."""
    counts = table.get(champion, {})
    return [(name, counts[name], items_path(champion, name)) for name in others if counts.get(name)]


def items_path(champion: str, challenger: str) -> str:
    """Where the items are of which both said this."""
    return "/page/rollout/items?" + urlencode({"champion": champion, "challenger": challenger})

"""Schedules of crontab(5) as triggers of APScheduler, which counts weekdays from Monday, not from Sunday."""

from datetime import UTC, datetime, tzinfo

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""Intervals count from here and not from a process's start, so that all hosts see the same slots."""
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NICKNAMES = {
    **dict.fromkeys(("@yearly", "@annually"), "0 0 1 1 *"),
    **dict.fromkeys(("@daily", "@midnight"), "0 0 * * *"),
    **{"@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0", "@hourly": "0 * * * *"},
}


def read_cron(text: str, zone: tzinfo) -> BaseTrigger:
    """Return the trigger of five fields, or of a nickname such as `@daily`, in a time zone.

    Where a day of the month and a weekday are both asked for, either will do. Raises ValueError, also for one
    that is never due.
    """
    fields = _NICKNAMES.get(text.strip().lower(), text).split()
    if len(fields) != 5:
        raise ValueError("five fields are wanted: minute, hour, day of the month, month and weekday")
    minute, hour, day, month, weekday = fields
    days = ",".join(_DAYS[number] for number in sorted(_weekdays(weekday)))
    either = [{"day": day, "day_of_week": days}]
    if not day.startswith("*") and not weekday.startswith("*"):
        either = [{"day": day}, {"day_of_week": days}]
    trigger = OrTrigger(
        [CronTrigger(minute=minute, hour=hour, month=month, timezone=zone, **which) for which in either]
    )
    if trigger.get_next_fire_time(None, EPOCH) is None:
        raise ValueError("it is never due: none of its months has such a day")
    return trigger


def _weekdays(field: str) -> set[int]:
    days: set[int] = set()
    for part in field.lower().split(","):
        span, slash, step = part.partition("/")
        first, dash, last = ("0", "-", "6") if span == "*" else span.partition("-")
        low, high = _weekday(first), _weekday(last if dash else first)
        high = 7 if high == 0 < low else 6 if slash and not dash else high
        if not low <= high <= 7 or (slash and not int(step if step.isdecimal() else 0)):
            raise ValueError(
                f"the weekday {part[:20]!r} is none: 0 to 7 or sun to sat, as 1-5, mon,fri or */2"
            )
        days |= {number % 7 for number in range(low, high + 1, int(step or 1))}
    return days


def _weekday(name: str) -> int:
    if name in _DAYS:
        return _DAYS.index(name)
    return int(name) if name in tuple("01234567") else len(_DAYS) + 1

"""What the memory knows of each source: its exemplars, what was said of it lately, and its alarms."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, select

from memory.records import Raised
from memory.schema import alarms, exemplars
from memory.verdict_index import count_by_source

LATELY = 20_000
"""Newest verdicts, of all sources together, that are counted."""

_ALARMS = 1000


@dataclass
class Source:
    """One source, by the name that the stream has for it."""

    name: str
    shelves: dict[str, int] = field(default_factory=dict)
    """its exemplars, by shelf"""
    said: Mapping[str, int] = field(default_factory=dict)
    """of the newest verdicts, those on its items, by label"""
    alarms: list[Raised] = field(default_factory=list)
    """of the newest alarms, the oldest first"""

    @property
    def items(self) -> int:
        """Verdicts lately."""
        return sum(self.said.values())


def list_sources(connection: Connection) -> list[Source]:
    """Return every source, those with alarms first, then those with most unknown items."""
    found: dict[str, Source] = {}

    def of(name: str) -> Source:
        return found.setdefault(name, Source(name))

    counts = select(exemplars.c.source, exemplars.c.shelf, func.count())
    for name, shelf, count in connection.execute(counts.group_by(exemplars.c.source, exemplars.c.shelf)):
        of(name).shelves[shelf] = count
    for name, said in count_by_source(connection, LATELY).items():
        of(name).said = said
    newest = select(alarms.c.raised).order_by(alarms.c.id.desc()).limit(_ALARMS)
    for text in reversed(connection.scalars(newest).all()):
        raised = Raised.model_validate_json(text)
        of(raised.source).alarms.append(raised)
    return sorted(found.values(), key=_most_to_see)


def _most_to_see(source: Source) -> tuple[int, int, str]:
    return -len(source.alarms), -source.shelves.get("unknown", 0), source.name

"""What an update measures on of the held-back shelf: a budget's share, however large the shelf is.

The choice is made for one update and kept nowhere; no row is touched. It follows from the groups' names
alone, so that updates after one another measure mostly on the same items.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence

from sqlalchemy import Connection

from memory.herding import shares
from memory.records import REAL, Exemplar, Split
from memory.rows import select_exemplars
from memory.store import Store

MEASURED: tuple[Split, ...] = ("calibration", "test")


def choose_resting(store: Store, budget: int) -> frozenset[str]:
    """Return the ids of held-back exemplars that `measured` leaves out, of calibration and of test each.

    Raises StoreUnavailableError.
    """
    with store.read() as connection:
        return frozenset().union(*(_over(connection, split, budget) for split in MEASURED))


def measured(shelf: Sequence[Exemplar], budget: int) -> set[str]:
    """Return the ids of at most `budget` of labelled exemplars to measure on.

    Half of the places are for reals, since the gates bound shares of them, and half for families, to each
    as many; within a class each source gets as many. Places that one cannot fill go to the others. Of a
    source the first are one item of each group, since a group is one witness, in the order of a hash.
    """
    places = shares(Counter("real" if e.family == REAL else "fake" for e in shelf), budget)
    by_class: dict[str, list[Exemplar]] = defaultdict(list)
    for exemplar in shelf:
        by_class[str(exemplar.family)].append(exemplar)
    families = {name: len(of) for name, of in by_class.items() if name != REAL}
    of_class = {REAL: places.get("real", 0), **shares(families, places.get("fake", 0))}
    chosen: set[str] = set()
    for name, of in by_class.items():
        by_source: dict[str, list[Exemplar]] = defaultdict(list)
        for exemplar in of:
            by_source[exemplar.source].append(exemplar)
        of_source = shares({source: len(items) for source, items in by_source.items()}, of_class[name])
        for source, items in by_source.items():
            chosen |= {e.id for e in _in_turn(items)[: of_source[source]]}
    return chosen


def _over(connection: Connection, split: Split, budget: int) -> set[str]:
    shelf = [e for e in select_exemplars(connection, shelf="held-back", split=split) if e.family is not None]
    return {e.id for e in shelf} - measured(shelf, budget)


def _in_turn(items: Sequence[Exemplar]) -> list[Exemplar]:
    """Return the items, of each group the first, then of each the second, and so on."""
    seen: Counter[str] = Counter()
    turns: list[tuple[int, int, Exemplar]] = []
    for exemplar in sorted(items, key=lambda e: (_hash(e.group), _hash(e.id))):
        turns.append((seen[exemplar.group], len(turns), exemplar))
        seen[exemplar.group] += 1
    return [exemplar for *_, exemplar in sorted(turns, key=lambda turn: turn[:2])]


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()

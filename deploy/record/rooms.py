"""Brings the acts of rooms that keep them in databases of their own into the record, each one once."""

import threading

from deploy.record.acts import Act
from deploy.record.record import Record
from memory.acts import acts_after
from memory.store import Store

_ACTS_AT_ONCE = 500


class MemoryActs:
    """The way of the memory's acts into the record. Safe to use from several threads and processes.

    An act and its row in the memory are one transaction, so none is lost where this is interrupted: the next
    call brings it in. Where the record's database was restored from an older copy, the next start does.
    """

    def __init__(self, memory: Store, record: Record) -> None:
        self._memory, self._record = memory, record
        self._newest = 0  # the memory's newest act that is on record, as far as this process knows
        self._one_at_a_time = threading.Lock()

    def bring_in(self) -> int:
        """Put on record what is not yet; return how many acts. Raises StoreUnavailableError, RecordError."""
        brought = 0
        with self._one_at_a_time:
            while True:
                with self._memory.read() as connection:
                    acts = acts_after(connection, self._newest, _ACTS_AT_ONCE)
                if not acts:
                    return brought
                brought += self._record.append_once(
                    *(Act(act.actor, act.action, act.subject, act.details, act.at, act.uid) for act in acts)
                )
                self._newest = acts[-1].id

"""Publishes the record's head while the server runs, within seconds of each act."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self

import structlog
from pydantic import ValidationError

from deploy.record import metrics
from deploy.record.chain import Head
from deploy.record.heads import (
    HeadsDifferError,
    PublishedHead,
    accept,
    compare,
    newest_of,
    of_now,
    publish,
)
from deploy.record.record import Record, RecordError
from ingest.kafka.compacted import TopicError, read_all
from memory.store import StoreUnavailableError

INTERVAL_S = 1.0
"""Between two looks whether the record went on; after a failed one ten times as long."""

log = structlog.get_logger()


class HeadPublisher:
    """Keeps the topic at the record's head, in a thread of its own, while it is entered.

    Where the record differs from what was published of it, nothing more is published: the topic keeps what
    shows it, until the difference is accepted.
    """

    def __init__(
        self,
        record: Record,
        bring_in: Callable[[], int],
        options: Mapping[str, Any],
        topic: str,
        *,
        interval_s: float,
        timeout_s: float,
    ) -> None:
        """bring_in puts acts of other rooms on record first."""
        self._record, self._bring_in = record, bring_in
        self._options, self._topic = dict(options), topic
        self._interval_s, self._timeout_s = interval_s, timeout_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="head-publisher", daemon=True)
        self.problem: str | None = "not published yet"
        self.newest: PublishedHead | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def read(self) -> list[PublishedHead]:
        """Every head that the topic holds, in its order; what is none is passed by. Raises TopicError."""
        heads = list[PublishedHead]()
        for record in read_all(self._options, self._topic, self._timeout_s):
            with suppress(ValidationError):
                heads.append(PublishedHead.model_validate_json(record.value or b""))
        return heads

    def accept(self, actor: str, difference: str, reason: str) -> None:
        """Publish that a difference from the heads, by its name, is known, and why.

        Raises DifferenceChangedError, TopicError, RecordError, and what bring_in does.
        """
        self._bring_in()
        head = accept(self._record, self.read(), actor, difference, reason)
        publish(self._options, self._topic, head, self._timeout_s)

    def look(self) -> None:
        """Publish the head if the record went on.

        Raises HeadsDifferError, TopicError, RecordError, and what bring_in does.
        """
        self._bring_in()
        if self.problem is not None:
            heads = self.read()
            compare(self._record, heads)
            self.newest = newest_of(self._record, heads)
        head = self._record.head()
        if self.newest is not None and head == Head(self.newest.size, self.newest.hash):
            return
        if self.newest is not None:
            compare(self._record, [self.newest])
        if head.size:
            published = of_now(self._record, head)
            publish(self._options, self._topic, published, self._timeout_s)
            self.newest = published

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
                problem = None
            except (HeadsDifferError, TopicError, RecordError, StoreUnavailableError) as error:
                problem = str(error)
                if problem != self.problem:
                    log.error("the record's head is not published", problem=problem)
            self.problem = problem
            metrics.PUBLISHED.set(problem is None)
            self._stop.wait(self._interval_s if problem is None else 10 * self._interval_s)

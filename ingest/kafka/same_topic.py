"""Whether a topic is still the one that was read before: the broker is asked beside the reading.

Records are fetched by the topic's name, so that a position in one topic would be taken for one in another
that was made anew under its name.
"""

import math
import threading
import time
from typing import Any

from kafka.errors import KafkaError

_SAME_TOPIC_S = 0.1
"""Within this time no topic is deleted, made anew and filled; a client asks no sooner (retry_backoff_ms)."""


class TopicRenewedError(KafkaError):  # type: ignore[misc]
    """Fatal: the topic is another than the one that was read. A new source reads it from its beginning."""


class SameTopic:
    """The broker's word on which topic a consumer reads; usable from several threads.

    A question costs a round trip to the broker, and up to 0.1 s where one was asked just before. So it is
    asked when records come (`ask`), and its answer is only waited for when they are to be committed
    (`confirm`): what was fetched before the question was asked is then of that topic.
    """

    def __init__(self, consumer: Any, topic: str, timeout_ms: int) -> None:
        self._consumer, self._topic, self._timeout_ms = consumer, topic, timeout_ms
        self._lock = threading.Lock()
        self._question: tuple[float, Any] | None = None
        self._fetched_at = self._asked_at = -math.inf
        self.topic_id: str | None = None
        """None: nothing was answered yet, or the broker gives no ids."""

    def ask(self) -> None:
        """Ask about all that was fetched so far, without waiting. Raises TopicRenewedError."""
        self._fetched_at = time.monotonic()
        with self._lock:
            question = self._question
        if question is not None and question[1].succeeded():
            self._hear(question)
        self._put(self._fetched_at)

    def confirm(self) -> None:
        """Wait until the broker has said of which topic all is that was asked about.

        Raises TopicRenewedError, and another KafkaError where the broker does not tell.
        """
        fetched_at = self._fetched_at
        while (question := self._put(fetched_at)) is not None:
            self._consumer._net.run(self._consumer._manager.wait_for, question[1], self._timeout_ms)
            self._hear(question)

    def _put(self, fetched_at: float) -> tuple[float, Any] | None:
        """Have a question under way, unless the last answer covers what was fetched by then."""
        with self._lock:
            if fetched_at - self._asked_at < _SAME_TOPIC_S or fetched_at == -math.inf:
                return None
            if self._question is None or self._question[1].failed():
                self._question = time.monotonic(), self._consumer._cluster.request_update()
            return self._question

    def _hear(self, question: tuple[float, Any]) -> None:
        asked_at, _ = question
        with self._lock:
            if self._question is question:
                self._question = None
            topic_id = self._consumer._cluster.topic_id(self._topic)
            if topic_id is not None:  # else it is gone, or the broker gives no ids
                if self.topic_id not in (None, str(topic_id)):
                    raise TopicRenewedError(
                        f"the topic {self._topic} was made anew; a new start reads all of it"
                    )
                self.topic_id = str(topic_id)
            self._asked_at = max(self._asked_at, asked_at)


def fresh_topic_id(consumer: Any, topic: str, timeout_ms: int) -> str | None:
    """Ask the broker for a topic's id; None where there is no such topic, or no ids. Raises KafkaError."""
    asked = consumer._cluster.request_update()
    consumer._net.run(consumer._manager.wait_for, asked, timeout_ms)
    topic_id = consumer._cluster.topic_id(topic)
    return None if topic_id is None else str(topic_id)

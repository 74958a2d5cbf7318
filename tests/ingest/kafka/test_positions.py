"""The answer that counts is the one to a question asked after the records were fetched."""

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError
from kafka.future import Future

from ingest.kafka import positions
from ingest.kafka.positions import SameTopic, TopicRenewedError


class Broker:
    """What a consumer holds of its cluster: a question is answered when it is waited for."""

    def __init__(self) -> None:
        self.topic_id_: str | None = "a"
        self.questions: list[Future] = []
        self.waited = 0
        self.silent = False
        self._cluster, self._net, self._manager = self, self, SimpleNamespace(wait_for=None)

    def request_update(self) -> Future:
        self.questions.append(Future())
        return self.questions[-1]

    def topic_id(self, _topic: str) -> str | None:
        return self.topic_id_

    def run(self, _wait_for: Any, question: Future, _timeout_ms: int) -> None:
        self.waited += 1
        if self.silent:
            raise KafkaTimeoutError("no answer")
        question.success(None)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [0.0]
    monkeypatch.setattr(positions.time, "monotonic", lambda: clock[0])
    return clock


def test_reading_waits_for_nothing_and_a_commit_for_the_answer(now):
    broker = Broker()
    same = SameTopic(broker, "t", 1000)
    same.confirm()  # nothing was fetched
    assert not broker.questions
    same.ask()
    assert (len(broker.questions), broker.waited) == (1, 0)
    same.confirm()
    assert (broker.waited, same.topic_id) == (1, "a")
    now[0] = 0.05  # within this time no topic is made anew
    same.ask()
    same.confirm()
    assert len(broker.questions) == 1
    now[0] = 0.2
    same.ask()
    assert len(broker.questions) == 2


def test_an_answer_to_an_older_question_is_not_enough(now):
    broker = Broker()
    same = SameTopic(broker, "t", 1000)
    same.ask()
    now[0] = 5.0
    same.ask()  # the first one is still under way
    assert len(broker.questions) == 1
    same.confirm()
    assert len(broker.questions) == broker.waited == 2


def test_a_topic_made_anew_is_told_by_the_next_poll_and_by_the_commit(now):
    broker = Broker()
    same = SameTopic(broker, "t", 1000)
    same.ask()
    same.confirm()
    broker.topic_id_ = None  # gone for a while
    now[0] = 1.0
    same.ask()
    same.confirm()
    broker.topic_id_ = "b"
    now[0] = 2.0
    same.ask()
    broker.questions[-1].success(None)
    with pytest.raises(TopicRenewedError, match="made anew"):
        same.ask()
    with pytest.raises(TopicRenewedError, match="made anew"):
        same.confirm()


def test_what_is_not_answered_is_asked_again(now):
    broker = Broker()
    same = SameTopic(broker, "t", 1000)
    broker.silent = True
    same.ask()
    with pytest.raises(KafkaTimeoutError):
        same.confirm()
    broker.questions[-1].failure(KafkaTimeoutError("lost"))
    same.ask()  # is no error of reading
    assert len(broker.questions) == 2
    broker.silent = False
    same.confirm()
    assert same.topic_id == "a"

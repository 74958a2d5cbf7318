import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from kafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaTimeoutError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from kafka.future import Future

from deploy.local.processes import free_port
from ingest.kafka import access, positions
from ingest.kafka.access import as_refusal, auth_problem, outage, own_transactional_id, require_entry
from ingest.kafka.positions import SameTopic, TopicRenewedError
from ingest.settings import IngestSettings


def options(*servers):
    return {"bootstrap_servers": list(servers), "sasl_plain_username": "ada"}


def test_one_server_that_listens_is_enough_and_without_any_each_is_named():
    away = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        there = f"127.0.0.1:{listening.getsockname()[1]}"
        assert outage(options(away[0], there), 1) is None
    told = outage(options(*away, "127.0.0.77", "h:none"), 1)
    assert told is not None
    assert all(f"{server}: Connection refused" in told for server in away)
    assert "127.0.0.77: Connection refused; h:none: " in told  # 9092, as the client takes it


@pytest.mark.parametrize(("error", "count"), [(ValueError("descriptor: -1"), 0), (KeyError(1), 1)])
def test_a_task_that_waits_on_a_socket_that_was_closed_meanwhile_is_no_fault_to_log(caplog, error, count):
    access.kafka_options(IngestSettings())
    logging.getLogger("kafka.net.selector").error("Unhandled exception in task", exc_info=error)
    assert len(caplog.records) == count


def test_a_broker_that_is_away_bars_a_client_but_is_no_refusal():
    away = options(f"127.0.0.1:{free_port()}")
    require_entry(away, 1)
    assert "no broker answers" in str(auth_problem(away, 1))


def test_a_server_that_hangs_up_and_speaks_no_tls_is_no_refusal():
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up():
            while True:
                try:
                    listening.accept()[0].close()
                except OSError:  # the test is over
                    return

        server = threading.Thread(target=hang_up)
        server.start()
        try:
            require_entry(options(f"127.0.0.1:{listening.getsockname()[1]}"), 1)
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            server.join()


@pytest.mark.parametrize(
    ("error", "name", "told"),
    [
        (TopicAuthorizationFailedError({"b", "a"}), None, "topic a, b; grant it Create,"),
        (TopicAuthorizationFailedError("a long request"), "a", "topic a; grant it Create,"),
        (GroupAuthorizationFailedError("g"), None, "group g; grant it Read and Describe"),
        (TransactionalIdAuthorizationFailedError(), "t", "transactional id t; grant it Write and Describe"),
        (ClusterAuthorizationFailedError(), None, "lacks a right"),
    ],
)
def test_a_refusal_is_one_line_with_who_where_and_which_right(error, name, told):
    line = str(as_refusal(error, options("k1:9092", "k2:9092"), name))
    assert line.startswith("k1:9092,k2:9092: user ada ")
    assert told in line
    assert "\n" not in line


GROUP = f"group-{os.getpid()}"
HOST = socket.gethostname()
PROGRAM = f"""
from ingest.kafka.access import own_transactional_id
with own_transactional_id({GROUP!r}) as name:
    print(name, flush=True)
    input()
"""


def other():
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def said_by(process):
    return process.stdout.readline().strip()


def test_no_two_processes_of_a_host_have_the_same_and_a_killed_ones_is_taken_up_again():
    first, second = other(), other()
    try:
        names = {said_by(first), said_by(second)}
        assert names == {f"{GROUP}-{HOST}-0", f"{GROUP}-{HOST}-1"}
        with own_transactional_id(GROUP) as third:
            assert third == f"{GROUP}-{HOST}-2"
    finally:
        for process in (first, second):
            process.send_signal(signal.SIGKILL)
            process.communicate()
    with own_transactional_id(GROUP) as again:
        assert again == f"{GROUP}-{HOST}-0"


def test_groups_and_long_names_do_not_meet():
    with own_transactional_id("g" * 300 + "a") as one, own_transactional_id("g" * 300 + "b") as other_one:
        assert one.endswith(f"a-{HOST}-0")
        assert other_one.endswith(f"b-{HOST}-0")


# The answer that counts is the one to a question asked after the records were fetched.
class Broker:
    def __init__(self):
        self.topic_id_ = "a"
        self.questions = []
        self.waited = 0
        self.silent = False
        self._cluster, self._net, self._manager = self, self, SimpleNamespace(wait_for=None)

    def request_update(self):
        self.questions.append(Future())
        return self.questions[-1]

    def topic_id(self, _topic):
        return self.topic_id_

    def run(self, _wait_for, question, _timeout_ms):
        self.waited += 1
        if self.silent:
            raise KafkaTimeoutError("no answer")
        question.success(None)


@pytest.fixture
def now(monkeypatch):
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

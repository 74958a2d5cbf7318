"""The end of a transaction that is delayed on its way does not end the next one half-written."""

import contextlib
import socket
import struct
import threading

import pytest
from kafka import KafkaProducer
from streams import all_of, await_that

from deploy.local.broker import start_broker
from deploy.local.processes import free_port
from ingest.kafka import sink as sink_module
from ingest.kafka.sink import CommitError, TransactionalSink
from ingest.kafka.topics import Topic, ensure_topics
from ingest.records import OutRecord
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system

END_TXN = 26
ACCEPTED, FENCED = 0, (47, 90)


class Proxy:
    """Between clients and a broker. Once armed it cuts the connection of the next EndTxn.

    It keeps that to itself, or, where it is `delivered`, the answer.
    """

    def __init__(self, broker_port):
        self._broker = "127.0.0.1", broker_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.armed = self.delivered = False
        self._kept = None
        threading.Thread(target=self._accept, daemon=True).start()

    def deliver(self):
        """Let the broker have what was kept, late; returns the error code that it answers with."""
        assert self._kept is not None, "no EndTxn came by"
        with socket.create_connection(self._broker) as connection:
            connection.sendall(self._kept)
            answer = frame(connection)
        # Version 3: length, correlation id, no tagged fields, throttle time, error code.
        return int(struct.unpack_from(">h", answer, 13)[0])

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(self._broker)
            for pump in (self._requests, self._answers):
                threading.Thread(target=pump, args=(client, broker), daemon=True).start()

    def _requests(self, client, broker):
        while request := frame(client):
            if self.armed and struct.unpack_from(">h", request, 4) == (END_TXN,):
                self.armed, self._kept = False, request
                if not self.delivered:
                    break
                broker.sendall(request)
                client.shutdown(socket.SHUT_RDWR)
                return
            broker.sendall(request)
        client.close()
        broker.shutdown(socket.SHUT_RDWR)

    def _answers(self, client, broker):
        with contextlib.suppress(OSError):
            while answer := frame(broker):
                client.sendall(answer)
        client.close()
        broker.close()


def frame(sock):
    """One message of the protocol with its length before it; nothing at the connection's end."""
    try:
        head = sock.recv(4, socket.MSG_WAITALL)
        if len(head) < 4:
            return b""
        return head + sock.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
    except OSError:
        return b""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory, kafka_cache):
    """A proxy in front of a second listener of a broker, which tells its clients the proxy's address."""
    port, controller, behind = free_port(), free_port(), free_port()
    proxy = Proxy(behind)
    plain = f"PLAINTEXT://127.0.0.1:{port}"
    server = start_broker(
        tmp_path_factory.mktemp("proxied"),
        port,
        controller,
        cache=kafka_cache,
        properties={
            "listeners": f"{plain},CONTROLLER://127.0.0.1:{controller},BEHIND://127.0.0.1:{behind}",
            "advertised.listeners": f"{plain},BEHIND://127.0.0.1:{proxy.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,BEHIND:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        },
    )
    yield proxy
    proxy.close()
    server.stop()


@pytest.mark.bar("B4")
def test_the_delayed_end_of_a_transaction_does_not_end_the_next_one(proxy, monkeypatch):
    code, committed = delay_an_end(proxy, monkeypatch, "safe")
    assert code in FENCED
    assert committed == [b"first", b"second"]


@pytest.mark.bar("B4")
def test_without_a_new_producer_the_next_transaction_would_be_ended_half_written(proxy, monkeypatch):
    monkeypatch.setattr(sink_module, "_note_unanswered", lambda producer, unanswered: None)
    code, committed = delay_an_end(proxy, monkeypatch, "unsafe")
    assert code == ACCEPTED
    assert committed == [b"first", b"second", b"half of the third"]


@pytest.fixture
def broker(proxy):
    """Workers of these tests come by the proxy."""
    return f"127.0.0.1:{proxy.port}"


@pytest.mark.bar("B4")
def test_where_ends_of_transactions_are_dropped_each_item_is_answered_once(proxy, answers, slots, bar):
    times = bar.times(2, 20)
    for turn in range(times):
        proxy.delivered, proxy.armed = turn % 2 == 0, True
        await_that(lambda: answers.go_on() and not proxy.armed, 300)
        await_that(answers.reach, 300)
    proxy.delivered = False
    bar.count(times, lost=answers.lost, twice=answers.twice, recovery_s=answers.still_s)
    assert (answers.lost, answers.twice, answers.in_order) == (0, 0, True)


def test_requests_that_are_answered_keep_their_producer(proxy):
    # "Not yet": the end of the transaction before is still being written when the next one begins.
    settings = IngestSettings(bootstrap_servers=f"127.0.0.1:{proxy.port}")
    ensure_topics(settings, [Topic("many", 10_000)])
    with TransactionalSink(settings, "many") as sink:
        producer = sink._producer
        for _ in range(20):
            sink.commit([OutRecord("many", None, b"x")], {}, None)
        assert sink._producer is producer


def delay_an_end(proxy, monkeypatch, name):
    """Commit twice, the second time with an end that comes late: when half of a third transaction, which
    fails, is written. Returns the broker's answer to that end, and what is committed after all."""
    settings = IngestSettings(bootstrap_servers=f"127.0.0.1:{proxy.port}")
    ensure_topics(settings, [Topic(name, 10_000)])
    codes = []
    flush = KafkaProducer.flush

    def deliver_after_it(producer, timeout=None):
        flush(producer, timeout)
        codes.append(proxy.deliver())
        raise OSError("the line broke before the rest")

    with TransactionalSink(settings, name) as sink:
        sink.commit([OutRecord(name, None, b"first")], {}, None)
        proxy.armed = True
        sink.commit([OutRecord(name, None, b"second")], {}, None)
        with monkeypatch.context() as patch:
            patch.setattr(KafkaProducer, "flush", deliver_after_it)
            with pytest.raises(CommitError):
                sink.commit([OutRecord(name, None, b"half of the third")], {}, None)
        sink.recover()  # and what was left open is aborted
    return codes[0], [record.value for record in all_of(settings.bootstrap_servers, name)]

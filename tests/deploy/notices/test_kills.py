"""A server that is killed amid sending loses no notice: the next one sends what was not known to be taken."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from deploy.record.record import Record

SERVER = """
import sys
from datetime import timedelta
from deploy.notice_records import Webhook
from deploy.notices.notices import Notices
from deploy.notices.sender import Sender
from deploy.record.record import Record

url, webhook = sys.argv[1:]
record = Record(url)
sender = Sender(record, 1, Webhook(url=webhook), bytes(32), interval_s=0.01, lease=timedelta(seconds=0.2))
with Notices(record, [sender], list):
    print("sending", flush=True)
    sys.stdin.read()
"""
KILLS = {"sqlite": 20, "postgresql": 5}


@contextmanager
def server(url: str, webhook: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SERVER, url, webhook]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sending\n"
        yield process
        process.kill()


@pytest.mark.slow
def test_kills_amid_sending_none_is_lost(
    either_database: str, receiver, act_in: Callable[[Record, int], list[str]]
) -> None:
    """Half of them while a notice is under way: it was received, and the server never knew."""
    rng, record, ids = np.random.default_rng(7), Record(either_database), list[str]()
    webhook = receiver.webhook().url.get_secret_value()
    with server(either_database, webhook):
        pass  # the webhook is known from now on
    kills = KILLS[either_database.partition(":")[0]]
    for kill in range(kills):
        ids += act_in(record, 10)
        stands = len(receiver.got) + int(rng.integers(1, 8))
        receiver.answer = lambda number, stands=stands, hangs=kill % 2: (
            "hang" if hangs and number == stands else 204
        )
        with server(either_database, webhook):
            receiver.until_got(stands + 1)
    receiver.answer = lambda _: 204
    ids += act_in(record, 1)
    with server(either_database, webhook):
        receiver.until(lambda: receiver.ids[-1:] == ids[-1:])
    record.close()
    assert list(dict.fromkeys(receiver.ids)) == ids
    assert len(receiver.ids) >= len(ids) + kills // 2

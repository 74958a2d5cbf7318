import os
import signal
import socket
import subprocess
import sys

from ingest.kafka.transactional_id import own_transactional_id

GROUP = f"group-{os.getpid()}"
HOST = socket.gethostname()
PROGRAM = f"""
from ingest.kafka.transactional_id import own_transactional_id
with own_transactional_id({GROUP!r}) as name:
    print(name, flush=True)
    input()
"""


def other() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def said_by(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
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

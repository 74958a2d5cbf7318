"""A probe as a kubelet runs it: what a process answers is said, and decides the exit code."""

import subprocess
import sys

from ingest.process.health import Heartbeat, serve_health


def ask(url: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "ingest.process.probe", url], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def test_what_keeps_a_process_from_its_work_is_said_and_fails_the_probe():
    heartbeat = Heartbeat(60)
    with serve_health("127.0.0.1", 0, heartbeat) as address:
        heartbeat.beat("no release is served yet")
        assert ask(f"{address}/readyz") == (1, "no release is served yet\n")
        heartbeat.beat()
        assert ask(f"{address}/readyz") == (0, "ok\n")


def test_a_process_that_does_not_answer_fails_the_probe_with_the_reason():
    code, said = ask("http://127.0.0.1:1/readyz")
    assert code == 1
    assert said == "http://127.0.0.1:1/readyz does not answer: [Errno 111] Connection refused\n"

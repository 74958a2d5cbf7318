import json
import signal
from typing import Any

import pytest

pytestmark = pytest.mark.slow

JSON = {"FORGEWATCH_LOG_FORMAT": "json"}
ENDLESS = "threading.Event().wait()"


def until_started(process: Any) -> dict[str, Any]:
    for line in process.stderr:
        event: dict[str, Any] = json.loads(line)
        if event["event"] == "started":
            return event
    raise AssertionError("it ended before it had started")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_loop_ends_it_with_0(spawn, number):
    process = spawn(**JSON)
    until_started(process)
    process.send_signal(number)
    _, rest = process.communicate(timeout=120)
    assert process.returncode == 0
    assert [json.loads(line)["event"] for line in rest.splitlines()] == ["told to stop"]


@pytest.mark.parametrize("trial", range(6))
def test_a_signal_ends_a_loop_that_holds_the_locks_of_the_log_or_of_the_stop_all_the_time(spawn, trial):
    log = "import structlog; log = structlog.get_logger()"
    process = spawn(start=log, loop="log.info('busy'); process.stop.wait(0)", **JSON)
    until_started(process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 0


def test_a_signal_during_the_start_ends_it_at_once_with_0(spawn):
    process = spawn(start=f"print('{{}}', file=sys.stderr, flush=True); {ENDLESS}")
    process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 0


MET_WITH_A_SIGNAL = """
import os, signal
meet_signals = Process.meet_signals
def meet_one(process):
    meet_signals(process)
    os.kill(os.getpid(), signal.SIGTERM)
Process.meet_signals = meet_one
"""


def test_a_signal_that_comes_as_soon_as_it_is_met_is_told_and_ends_it_with_0(spawn):
    process = spawn(before=MET_WITH_A_SIGNAL, **JSON)
    (line,) = process.communicate(timeout=120)[1].splitlines()
    assert json.loads(line)["event"] == "told to stop"
    assert process.returncode == 0


def test_a_second_signal_ends_a_loop_that_does_not_look(spawn):
    process = spawn(loop=ENDLESS, **JSON)
    until_started(process)
    process.send_signal(signal.SIGTERM)
    process.stderr.readline()  # told to stop
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == -signal.SIGTERM


RAISED = {
    "expected": ("with failing_on(OSError): raise OSError('the disk is gone')", "error", "the disk is gone"),
    "unexpected": ("raise OSError('the disk is gone')", "exception", "Traceback"),
}


@pytest.mark.parametrize("kind", RAISED)
def test_an_error_during_the_start_is_one_event_and_1(spawn, kind):
    error, key, said = RAISED[kind]
    process = spawn(start=error, **JSON)
    (line,) = process.communicate(timeout=120)[1].splitlines()
    event = json.loads(line)
    assert process.returncode == 1
    assert (event["event"], event["level"]) == ("cannot start", "critical")
    assert said in event[key]


def test_an_error_in_the_loop_is_one_event_and_1(spawn):
    process = spawn(loop="raise OSError('the disk\\n is gone')", **JSON)
    started, failed = map(json.loads, process.communicate(timeout=120)[1].splitlines())
    assert process.returncode == 1
    assert started["event"] == "started"
    assert (failed["event"], failed["error"]) == ("cannot go on", "the disk is gone")


def test_wrong_and_unknown_settings_are_a_line_each_and_2(spawn):
    process = spawn(
        FORGEWATCH_INGEST_MAX_PIXELS="many",
        FORGEWATCH_INGEST_MAX_PIXEL="1",
        FORGEWATCH_LOG_LEVEL="loud",
    )
    _, said = process.communicate(timeout=120)
    lines = said.splitlines()
    assert process.returncode == 2
    assert len(lines) == 3
    for name in ("FORGEWATCH_INGEST_MAX_PIXELS", "FORGEWATCH_INGEST_MAX_PIXEL", "FORGEWATCH_LOG_LEVEL"):
        assert any(f"setting={name} " in line for line in lines)

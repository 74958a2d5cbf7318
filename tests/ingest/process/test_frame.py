import json
import os
import signal

import pytest
from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from ingest.process.frame import ProcessSettings, find_problems, unknown_names

JSON = {"FORGEWATCH_LOG_FORMAT": "json"}
ENDLESS = "threading.Event().wait()"


def until_started(process):
    for line in process.stderr:
        event = json.loads(line)
        if event["event"] == "started":
            return event
    raise AssertionError("it ended before it had started")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_loop_ends_it_with_0(spawn, number):
    process = spawn(**JSON)
    until_started(process)
    process.send_signal(number)
    _, rest = process.communicate(timeout=120)
    assert process.returncode == 0
    assert [json.loads(line)["event"] for line in rest.splitlines()] == ["told to stop"]


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(6))
def test_a_signal_ends_a_loop_that_holds_the_locks_of_the_log_or_of_the_stop_all_the_time(spawn, trial):
    log = "import structlog; log = structlog.get_logger()"
    process = spawn(start=log, loop="log.info('busy'); process.stop.wait(0)", **JSON)
    until_started(process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 0


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_signal_that_comes_as_soon_as_it_is_met_is_told_and_ends_it_with_0(spawn):
    process = spawn(before=MET_WITH_A_SIGNAL, **JSON)
    (line,) = process.communicate(timeout=120)[1].splitlines()
    assert json.loads(line)["event"] == "told to stop"
    assert process.returncode == 0


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", RAISED)
def test_an_error_during_the_start_is_one_event_and_1(spawn, kind):
    error, key, said = RAISED[kind]
    process = spawn(start=error, **JSON)
    (line,) = process.communicate(timeout=120)[1].splitlines()
    event = json.loads(line)
    assert process.returncode == 1
    assert (event["event"], event["level"]) == ("cannot start", "critical")
    assert said in event[key]


@pytest.mark.slow
def test_an_error_in_the_loop_is_one_event_and_1(spawn):
    process = spawn(loop="raise OSError('the disk\\n is gone')", **JSON)
    started, failed = map(json.loads, process.communicate(timeout=120)[1].splitlines())
    assert process.returncode == 1
    assert started["event"] == "started"
    assert (failed["event"], failed["error"]) == ("cannot go on", "the disk is gone")


@pytest.mark.slow
def test_wrong_and_unknown_settings_are_a_line_each_and_2(spawn):
    process = spawn(
        FORGEWATCH_INGEST_MAX_PIXELS="many", FORGEWATCH_INGEST_MAX_PIXEL="1", FORGEWATCH_LOG_LEVEL="loud"
    )
    _, said = process.communicate(timeout=120)
    lines = said.splitlines()
    assert process.returncode == 2
    assert len(lines) == 3
    for name in ("FORGEWATCH_INGEST_MAX_PIXELS", "FORGEWATCH_INGEST_MAX_PIXEL", "FORGEWATCH_LOG_LEVEL"):
        assert any(f"setting={name} " in line for line in lines)


class MemorySettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="FORGEWATCH_MEMORY_", frozen=True)

    max_items: int = Field(3, ge=1, description="most items")
    key: SecretStr | None = None
    urls: dict[str, int] = {}

    @model_validator(mode="after")
    def _not_both(self):
        if self.max_items > 100 and self.urls:
            raise ValueError("too much of both")
        return self


KINDS = (ProcessSettings, MemorySettings)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in os.environ:
        if name.upper().startswith("FORGEWATCH_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"MAX_ITEMS": "x"}, ["MAX_ITEMS: Input should be a valid integer"]),
        ({"MAX_ITEMS": "0"}, ["MAX_ITEMS: Input should be greater than or equal to 1 (most items)"]),
        ({"URLS": "{"}, ["URLS: not the JSON that it must be: Expecting property name"]),
        ({"URLS": '{"a": "b"}'}, ["URLS: at a: Input should be a valid integer"]),
        ({"URLS": '{"a": 1}', "MAX_ITEMS": "101"}, ["…: too much of both"]),
        ({"MAX_ITEM": "1"}, ["MAX_ITEM: there is no such setting; did you mean FORGEWATCH_MEMORY_M"]),
        ({"SOMETHING": "1"}, ["SOMETHING: there is no such setting; unset it"]),
    ],
)
def test_what_is_wrong_is_told_by_the_name_of_its_variable(monkeypatch, value, said):
    for name, text in value.items():
        monkeypatch.setenv(f"FORGEWATCH_MEMORY_{name}", text)
    found = [str(problem) for problem in find_problems(KINDS)]
    assert len(found) == len(said)
    for line, start in zip(found, said, strict=True):
        assert line.startswith(f"FORGEWATCH_MEMORY_{start}")


def test_settings_of_rooms_that_are_not_read_are_not_judged_and_those_of_no_room_are(monkeypatch):
    monkeypatch.setenv("FORGEWATCH_DEPLOY_ANYTHING", "1")
    monkeypatch.setenv("FORGEWATCH_MEMROY_MAX_ITEMS", "1")
    (found,) = unknown_names(KINDS)
    assert found.setting == "FORGEWATCH_MEMROY_MAX_ITEMS"
    assert "FORGEWATCH_MEMORY_MAX_ITEMS" in found.problem


def test_right_settings_have_no_problem_in_either_case_of_letters(monkeypatch):
    monkeypatch.setenv("forgewatch_memory_max_items", "5")
    monkeypatch.setenv("FORGEWATCH_LOG_FORMAT", "json")
    assert find_problems(KINDS) == []


CALLS = (
    "import structlog, logging, warnings; log = structlog.get_logger(); password = 'hunter2'; "
    "log.info('release live', release='ab12', items=3); "
    "log.debug('not seen'); "
    "logging.getLogger('kafka.conn').warning('a broker is %s', 'away'); "
    "logging.getLogger('kafka.conn').info('not seen'); "
    "warnings.warn('old thing', stacklevel=1); "
    "thread = threading.Thread(target=lambda: 1 / 0, name='side'); thread.start(); thread.join(); "
    "{}['key']"
)


def test_all_that_is_logged_is_json_with_the_same_keys(spawn):
    process = spawn(start=CALLS, FORGEWATCH_LOG_FORMAT="json")
    _, said = process.communicate(timeout=120)
    events = [json.loads(line) for line in said.splitlines()]
    assert all({"timestamp", "level", "room", "event"} <= event.keys() for event in events)
    assert {event["room"] for event in events} == {"room"}
    assert [(event["level"], event["event"]) for event in events if "not seen" not in event["event"]] == [
        ("info", "release live"),
        ("warning", "a broker is away"),
        ("warning", events[2]["event"]),
        ("error", "thread ended by an unexpected error"),
        ("critical", "cannot start"),
    ]
    assert len(events) == 5
    assert (events[0]["release"], events[0]["items"]) == ("ab12", 3)
    assert events[1]["logger"] == "kafka.conn"
    assert "old thing" in events[2]["event"]
    assert "ZeroDivisionError" in events[3]["exception"]
    assert "KeyError" in events[4]["exception"]


def test_people_get_lines_without_the_variables_of_a_traceback(spawn):
    process = spawn(start=CALLS)
    _, said = process.communicate(timeout=120)
    assert "release live" in said
    assert "release=ab12" in said
    assert "KeyError: 'key'" in said
    assert "not seen" not in said
    assert said.count("hunter2") == 0


def test_the_level_is_the_least_that_is_logged(spawn):
    process = spawn(start=CALLS, FORGEWATCH_LOG_LEVEL="error", FORGEWATCH_LOG_FORMAT="json")
    _, said = process.communicate(timeout=120)
    assert [json.loads(line)["level"] for line in said.splitlines()] == ["error", "critical"]

import json

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

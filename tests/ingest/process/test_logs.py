import json
import shutil
import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry

from ingest.process.health import Disks, Heartbeat, serve_health

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


def test_a_folder_shows_the_room_of_its_file_system_before_it_is_made(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    registry.register(Disks({"work": tmp_path / "not" / "yet", "database": None}))
    usage = shutil.disk_usage(tmp_path)
    assert registry.get_sample_value("forgewatch_ingest_disk_size_bytes", {"volume": "work"}) == usage.total
    free = registry.get_sample_value("forgewatch_ingest_disk_free_bytes", {"volume": "work"})
    assert free is not None
    assert abs(free - usage.free) < 2**30
    assert registry.get_sample_value("forgewatch_ingest_disk_free_bytes", {"volume": "database"}) is None


def test_a_folder_that_cannot_be_looked_at_leaves_the_others_their_samples(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    registry = CollectorRegistry()
    registry.register(Disks({"index": tmp_path / "loop" / "index", "tmp": tmp_path}))
    assert registry.get_sample_value("forgewatch_ingest_disk_size_bytes", {"volume": "tmp"}) is not None

"""Every process in the same frame: wrong settings, signals, health. Real processes, without broker."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from sqlalchemy import create_engine

from deploy.cli.main import main
from ingest import NO_TELEMETRY
from ingest.kafka.access import kafka_options, outage
from ingest.settings import IngestSettings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
ROOMS = ("detector", "memory", "updater", "deploy")
_SIGTERM = 1 << (signal.SIGTERM - 1)

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def environment_of():

    def environment_of(**settings):
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FORGEWATCH_")
        }
        environment |= {
            "FORGEWATCH_LOG_FORMAT": "json",
            "FORGEWATCH_INGEST_BOOTSTRAP_SERVERS": "127.0.0.1:1",
            "FORGEWATCH_DEPLOY_PORT": "0",
            "OMP_NUM_THREADS": "1",
        }
        return environment | {f"FORGEWATCH_{each.upper()}_METRICS_PORT": "0" for each in ROOMS} | settings

    return environment_of


@pytest.fixture
def start(tmp_path, environment_of):
    """Start `python -m ROOM` in an empty folder."""
    processes = []

    def begin(room, **settings):
        process = subprocess.Popen(
            [sys.executable, "-m", room],
            cwd=tmp_path,
            env=environment_of(**settings),
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def started(fork, tmp_path, environment_of):
    """Start a room's process where its start is not looked at: it has been imported already."""
    return lambda room, **settings: fork(
        ROOT / room / "__main__.py", environment_of(**settings), cwd=tmp_path
    )


def events(process):
    assert process.stderr is not None
    said = [json.loads(line) for line in process.stderr]
    process.wait(180)
    return said


def address_once_started(process):
    for line in process.stderr:
        if (event := json.loads(line))["event"] == "started":
            return str(event["health"])
    raise AssertionError("it ended before it had started")


def await_answer(url, status, text):
    deadline = time.monotonic() + 180
    while True:
        answer = httpx.get(url, trust_env=False, timeout=30)
        if (answer.status_code, text in answer.text) == (status, True):
            return
        assert time.monotonic() < deadline, (answer.status_code, answer.text)
        time.sleep(0.05)


def catches_sigterm(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(caught, 16) & _SIGTERM)


@pytest.mark.parametrize(
    ("room", "setting", "value"),
    [
        ("detector", "FORGEWATCH_DETECTOR_MAX_BATCH_ITEMS", "many"),
        ("detector", "FORGEWATCH_INGEST_MAX_PIXELS", "-1"),
        ("updater", "FORGEWATCH_UPDATER_WITHOUT_KINDS", "{"),
        ("updater", "FORGEWATCH_UPDATER_DATABASE_URL", "sqlite://"),
        ("deploy", "FORGEWATCH_DEPLOY_PORT", "much"),
        ("deploy", "FORGEWATCH_DEPLOY_HOST", "0.0.0.0"),
        ("deploy", "FORGEWATCH_MEMORY_DATABASE_URL", "hunter2"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it_and_2(start, room, setting, value):
    process = start(room, **{setting: value})
    (event,) = events(process)
    assert process.returncode == 2
    assert (event["event"], event["setting"], event["room"]) == ("wrong setting", setting, room)
    assert event["problem"]
    assert "hunter2" not in json.dumps(event)


SECRET = "Xq7vKm2P/zL9wTb4#Rf6y@Hs8d"
AT = f"ada:{SECRET}@h:1"
ADDRESSES = (f"http://{AT}", "http://ada:Xq7vKm2P@h:Xq7v", "http://h:Xq7vKm2P", "http://a@Xq7vKm2P@h")
LOGIN = ("http://ada:Xq7vKm2P@h:1", *ADDRESSES[1:])
TOKENS = (f"{SECRET}\n", f"{SECRET}\u20ac", f"{SECRET}\udcff", f"\t{SECRET}")
KEYS = (f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n", "-----BEGIN Xq7vKm2P", "Xq7vKm2P" * 20, f"{SECRET}\n")
HOOKS = ({"form": SECRET}, {SECRET: SECRET}, {"url": f"http://h#{SECRET}"}, {"url": f"http://a:12/{SECRET}"})
EACH = {
    "INGEST_BOOTSTRAP_SERVERS": (AT, "sasl://Xq7vKm2P@h:1", "h:Xq7vKm2P", "h,a:zL9w@h:1"),
    **dict.fromkeys(("INGEST_SASL_MECHANISM", "INGEST_SECURITY_PROTOCOL"), (SECRET,) * 4),
    **dict.fromkeys((f"INGEST_SSL_{name}FILE" for name in ("CA", "CERT", "KEY")), KEYS),
    **dict.fromkeys(("DETECTOR_TRUSTED_SIGNERS", "UPDATER_SIGNING_KEY", "DEPLOY_WEBHOOK_CA"), KEYS),
    **dict.fromkeys(("DETECTOR_DEPLOY_TOKEN", "UPDATER_DEPLOY_TOKEN", "DEPLOY_TOKEN"), TOKENS),
    **dict.fromkeys(("DEPLOY_DETECTOR_TOKEN", "DEPLOY_UPDATER_TOKEN"), TOKENS),
    **dict.fromkeys(("DETECTOR_DEPLOY_URL", "UPDATER_DEPLOY_URL", "DEPLOY_URL"), LOGIN),
    **dict.fromkeys(("DETECTOR_TORCHSERVE_URL", "DETECTOR_TORCHSERVE_MANAGEMENT_URL"), LOGIN),
    **{"DEPLOY_PROMETHEUS_URL": ADDRESSES, "DEPLOY_TOKN": (SECRET,) * 4},
    "DEPLOY_HEALTH_URLS": [*(json.dumps({"m": url}) for url in LOGIN[1:]), json.dumps({LOGIN[0]: "m"})],
    "DEPLOY_WEBHOOKS": tuple(json.dumps([{"url": "https://h/x"} | hook]) for hook in HOOKS),
}
MALFORMED = [{f"FORGEWATCH_{name}": EACH[name][turn] for name in EACH} for turn in range(4)]
"""Of each setting that is checked before anything is begun four values that hold a part of a secret."""
STORES = (f"s3://{AT}", f"Xq7vKm2P://{AT}", f"ftp://{AT}", f"s3://b?{SECRET}", f"s3://ada:{SECRET[:8]}@/x")
DATABASES = tuple(f"{at}{SECRET}@h/x" for at in ("postgresql://ada:", "mysql://ada:", "Xq7vKm2P://", "p:"))
OTLP = "OTEL_EXPORTER_OTLP"
LATER = [
    *(("memory", "FORGEWATCH_MEMORY_DATABASE_URL", each) for each in DATABASES),
    ("updater", "FORGEWATCH_UPDATER_DATABASE_URL", "postgresql://ada:to@Xq7vKm2P@h/x"),
    *(("memory", "FORGEWATCH_MEMORY_CROPS_URL", each) for each in STORES),
    ("deploy", "FORGEWATCH_DEPLOY_ARTIFACTS_URL", STORES[0]),
    ("deploy", "FORGEWATCH_DEPLOY_WEBHOOK_SECRET", f"whsec_{SECRET}"),
    ("detector", f"{OTLP}_HEADERS", f"Authorization Bearer {SECRET}"),
    ("detector", f"{OTLP}_TRACES_HEADERS", f"a=b,authorization={SECRET}%0a"),
    ("detector", f"{OTLP}_ENDPOINT", f"http://ada:{SECRET}@127.0.0.1:1"),
    ("detector", f"{OTLP}_PROTOCOL", "grpc"),
]


def leaked(text):
    """The parts of the secret, of four characters, that stand in a text as they are or percent-encoded."""
    shown = text + urllib.parse.unquote(text)
    return {part for n in range(len(SECRET) - 3) if (part := SECRET[n : n + 4]) in shown}


@pytest.mark.parametrize(
    ("room", "settings"),
    [*(("deploy", each) for each in MALFORMED), *((room, {name: value}) for room, name, value in LATER)],
)
def test_no_process_tells_a_part_of_a_secret_in_a_setting_of_the_wrong_form(started, room, settings):
    process = started(room, **{f"{OTLP}_ENDPOINT": "http://127.0.0.1:1", **settings})
    said = process.stderr.read()
    assert (process.wait(180), leaked(said)) == (2, set()), said
    refused = [json.loads(line)["setting"].removesuffix("…") for line in said.splitlines()]
    assert len(refused) == len(settings)
    assert all(name.startswith(tuple(refused)) for name in settings)


@pytest.mark.parametrize("command", ["topics", "verdicts", "send /dev/null", "status", "releases"])
@pytest.mark.parametrize("settings", MALFORMED)
def test_no_command_tells_part_of_a_secret_in_a_wrong_setting(command, settings, monkeypatch, capfd):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert main(command.split()) == 2
    said = "".join(capfd.readouterr())
    assert leaked(said) == set()
    assert all(line.startswith("forgewatch: FORGEWATCH_") for line in said.splitlines()), said


def test_control_a_setting_whose_form_is_not_asked_is_told_by_what_meets_it_later():
    wrong = IngestSettings.model_construct(bootstrap_servers=f"127.0.0.1:{SECRET}")
    assert leaked(str(outage(kafka_options(wrong), 1.0)))


@pytest.mark.parametrize("room", ROOMS)
def test_a_setting_that_there_is_not_is_one_line_with_the_nearest_and_2(start, room):
    process = start(room, **{f"FORGEWATCH_{room.upper()}_METRIC_PORT": "1"})
    (event,) = events(process)
    assert process.returncode == 2
    assert event["setting"] == f"FORGEWATCH_{room.upper()}_METRIC_PORT"
    assert f"FORGEWATCH_{room.upper()}_METRICS_PORT" in event["problem"]


@pytest.mark.parametrize("room", ROOMS)
def test_a_signal_during_the_start_ends_it_with_0(start, room):
    process = start(room)
    while not catches_sigterm(process):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert [event["event"] for event in events(process)][-1] == "told to stop"
    assert process.returncode == 0


@pytest.mark.parametrize("room", ["memory", "updater", "deploy"])
def test_a_signal_in_the_loop_ends_it_with_0(started, room):
    process = started(room)
    address = address_once_started(process)
    await_answer(f"{address}/livez", 200, "ok")
    await_answer(f"{address}/metrics", 200, f"forgewatch_{room}_")
    process.send_signal(signal.SIGTERM)
    assert "told to stop" in [event["event"] for event in events(process)]
    assert process.returncode == 0


@pytest.mark.parametrize("room", ROOMS)
def test_a_taken_metrics_port_ends_the_start_with_one_line_and_1(started, room):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = started(room, **{f"FORGEWATCH_{room.upper()}_METRICS_PORT": str(port)})
        (event,) = events(process)
    assert process.returncode == 1
    assert event["event"] == "cannot start"
    assert f"127.0.0.1:{port}: Address already in use" in event["error"]


def test_a_taken_port_of_the_api_ends_the_start_with_one_line_and_1(started):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = started("deploy", FORGEWATCH_DEPLOY_PORT=str(port))
        (event,) = events(process)
    assert process.returncode == 1
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use" in event["error"]


def test_a_memory_without_a_broker_lives_and_is_not_ready(started):
    address = address_once_started(started("memory"))
    await_answer(f"{address}/readyz", 503, "Kafka")
    await_answer(f"{address}/livez", 200, "ok")


@pytest.mark.parametrize(("room", "table"), [("updater", "updater_runs"), ("deploy", "deploy_ledger")])
def test_a_process_whose_table_is_gone_lives_but_is_not_ready(started, tmp_path, room, table):
    url = f"sqlite:///{tmp_path}/{room}.sqlite"
    setting = f"FORGEWATCH_{room.upper()}_DATABASE_URL"
    address = address_once_started(started(room, **{setting: url}))
    await_answer(f"{address}/readyz", 200, "ok")
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {table} RENAME TO elsewhere")
    await_answer(f"{address}/readyz", 503, table)
    await_answer(f"{address}/livez", 200, "ok")
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE elsewhere RENAME TO {table}")
    await_answer(f"{address}/readyz", 200, "ok")
    engine.dispose()


IN_A_NAMESPACE = (
    *("unshare", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c"),
    'ip link set lo up && mount --bind "$0" /etc/resolv.conf && exec "$@"',
)
RESOLVER = """
import socket, subprocess, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
for code in sys.argv[1:]:
    subprocess.Popen([sys.executable, "-c", code])
while True:
    print("asked for", server.recv(512), flush=True)
"""
SCORES = """
import signal, sys, onnxruntime
from detector.model.feature_graph import feature_graph
onnxruntime.InferenceSession(feature_graph(128), providers=["CPUExecutionProvider"])
sys.stdout.write("scores\\n")
sys.stdout.flush()
signal.pause()
"""


@pytest.fixture
def beside_a_resolver(tmp_path):
    """Run Python code in a network of its own; what comes to its resolver is printed."""
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    command = [*IN_A_NAMESPACE, str(tmp_path / "resolv.conf")]
    if not shutil.which("ip") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this user makes no namespaces")
    begun = []

    def begin(home, *codes):
        (tmp_path / home).mkdir()
        # Nothing else of this environment: onnxruntime reports nothing where CI is set.
        begun.append(
            subprocess.Popen(
                [*command, sys.executable, "-c", RESOLVER, *codes],
                cwd=ROOT,
                env={"PATH": os.environ["PATH"], "HOME": str(tmp_path / home)},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return begun[-1]

    yield begin
    for each in begun:
        with each:
            each.kill()


def test_no_process_that_scores_asks_a_resolver_or_writes_below_its_home(beside_a_resolver, tmp_path):
    ours = beside_a_resolver("ours", *(f"import {room}\n{SCORES}" for room in ("ingest", *ROOMS)))
    assert ours.stdout
    assert [ours.stdout.readline() for _ in ("ingest", *ROOMS)] == ["scores\n"] * 5
    control = beside_a_resolver("control", SCORES)
    assert control.stdout
    assert control.stdout.readline() == "scores\n"
    assert "microsoft" in control.stdout.readline()
    ours.kill()
    assert ours.communicate()[0] == ""
    assert any((tmp_path / "control").iterdir())
    assert not any((tmp_path / "ours").iterdir())


def test_what_turns_telemetry_off_is_in_the_image():
    image = (ROOT / "helm" / "images" / "Dockerfile").read_text()
    assert {f"{name}={value}" for name, value in NO_TELEMETRY.items()} <= set(image.split())

"""Every process as in its container: uid 65532, no capability, and a root that nobody can write."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from deploy.layouts import all_topics
from ingest.kafka.topics import ensure_topics
from ingest.settings import IngestSettings

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROOMS = ("detector", "memory", "updater", "deploy")
UID = 65532
DATA = Path("/srv")
"""What each process may write: a disk of its own is there, in its own name space alone."""

BEGINS = f"""
set -e
mount --make-rprivate /
case {sys.base_prefix} in
/root/*) # which no other user may pass through
    mount --bind {sys.base_prefix} /mnt
    mount -t tmpfs -o mode=0755 none /root
    mkdir -p {sys.base_prefix}
    mount --move /mnt {sys.base_prefix}
    ;;
esac
mount -t tmpfs -o mode=0700,uid={UID},gid={UID} none {DATA}
while read -r _ at kind _; do
    case "$kind $at" in
    "tmpfs {DATA}" | *" /dev"* | *" /proc"* | *" /sys"*) ;;
    *) mount -o remount,bind,ro "$at" ;;
    esac
done < /proc/self/mounts
cd "$1"
shift
exec setpriv --reuid={UID} --regid={UID} --clear-groups --no-new-privs \\
    --inh-caps=-all --bounding-set=-all "$@"
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(broker):
    """Start a command there, in a folder. Skips where no such name space may be made."""
    ingest = IngestSettings(bootstrap_servers=broker, topic_prefix=uuid.uuid4().hex)
    processes = []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FORGEWATCH_")}
    environment |= {
        "FORGEWATCH_LOG_FORMAT": "json",
        "FORGEWATCH_INGEST_BOOTSTRAP_SERVERS": broker,
        "FORGEWATCH_INGEST_TOPIC_PREFIX": ingest.topic_prefix,
        "FORGEWATCH_DEPLOY_PORT": "0",
        "HOME": str(DATA),
        "TMPDIR": str(DATA),
        "OMP_NUM_THREADS": "1",
        **{f"FORGEWATCH_{room.upper()}_METRICS_PORT": "0" for room in ROOMS},
    }

    def begin(*command, folder=DATA):
        process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", BEGINS, "sh", str(folder), *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    probe = begin(sys.executable, "-c", "import torch; open('written', 'w').close()")
    _, said = probe.communicate()
    if probe.returncode:
        pytest.skip(f"no such process can be had here: {said.strip().splitlines()[-1]}")
    ensure_topics(ingest, all_topics(ingest, 1))
    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def await_answer(url, process):
    deadline = time.monotonic() + 180
    while (answer := httpx.get(url, trust_env=False, timeout=30)).status_code != 200:
        assert process.poll() is None
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.05)


@pytest.mark.bar("K3")
def test_every_process_works_as_65532_on_a_root_that_is_read_only(start, bar):
    processes = {room: start(sys.executable, "-m", room) for room in ROOMS}
    bar.count(len(processes))
    for room, process in processes.items():
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(json.loads(line))
            if said[-1]["event"] == "started":
                break
        assert said[-1]["event"] == "started", said
        # No release was ever approved, so no TorchServe is there for the detector.
        await_answer(f"{said[-1]['health']}/{'livez' if room == 'detector' else 'readyz'}", process)
        status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        assert f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}" in status
        (capabilities,) = [line.split()[1] for line in status if line.startswith("CapBnd:")]
        assert int(capabilities, 16) == 0
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=120)
        assert process.returncode == 0, rest
        assert "Traceback" not in rest


@pytest.mark.bar("K3")
@pytest.mark.parametrize("room", ["memory", "updater", "deploy"])
def test_control_without_a_folder_of_its_own_it_says_so_in_one_line(start, room):
    """The root is read-only indeed."""
    process = start(sys.executable, "-m", room, folder=Path("/"))
    _, said = process.communicate(timeout=180)
    assert process.returncode == 1
    (event,) = map(json.loads, said.splitlines())
    assert "Read-only file system" in event["error"]

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
from pathlib import Path
from pydantic_settings import BaseSettings
from ingest.process import health
from ingest.process.frame import Process, failing_on, run
from ingest.process.health import serve_health
from ingest.settings import IngestSettings

def body(process):
    {start}
    with failing_on(OSError), serve_health("127.0.0.1", 0, process.heartbeat) as address:
        process.report_started(health=address)
        while not process.stop.wait(0.001):
            process.heartbeat.beat()
            {loop}

{before}
sys.exit(run("room", (IngestSettings,), body))
"""


@pytest.fixture
def spawn():
    """Start a process in the frame that does what is given before it, at its start and in its loop."""
    started = []

    def start(start="", loop="", before="", **settings):
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FORGEWATCH_")
        }
        program = PROGRAM.format(start=start or "pass", loop=loop or "pass", before=before)
        process = subprocess.Popen(
            [sys.executable, "-c", program], env=environment | settings, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()

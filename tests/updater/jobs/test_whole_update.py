"""An update by a Job of a real API server, from the schedule to a proposal, with an eviction between."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from memory.database import open_engine
from updater.runs import RunTable

pytestmark = pytest.mark.slow

TEMPLATE = "forgewatch-update"
LIGHT = Path(__file__).with_name("light_updater.py")
RUN = Path(__file__).parents[1] / "short_run.py"


@contextmanager
def process(command, **options):
    begun = subprocess.Popen([sys.executable, *map(str, command)], **options)
    try:
        yield begun
    finally:
        begun.kill()
        begun.communicate()


def address_once_started(lines):
    said = []
    for line in lines:
        said.append(line)
        if json.loads(line)["event"] == "started":
            return json.loads(line)["health"]
    raise AssertionError("".join(said) or "it ended without a word")


def test_an_evicted_update_goes_on_in_its_job_and_is_proposed_once(
    namespace, environment, remember, deploy_server, awaited
):
    remember("real", 40)
    remember("blocky", 40)
    namespace.give_template()
    with deploy_server() as (url, _):
        pod_environment = environment(url)
        settings = pod_environment | {"FORGEWATCH_UPDATER_JOB_TEMPLATE": TEMPLATE}
        with process([LIGHT, namespace.folder], env=settings, stderr=subprocess.PIPE, text=True) as light:
            address = address_once_started(light.stderr)

            def ready():
                return httpx.get(f"{address}/readyz", trust_env=False)

            awaited(lambda: "the Kubernetes API forbids it" in ready().text, "complaint")
            namespace.allow()
            awaited(lambda: ready().is_success, "readiness", timeout_s=120)
            engine = open_engine(settings["FORGEWATCH_UPDATER_DATABASE_URL"])
            table = RunTable(engine, lease_s=2, max_takeovers=2)
            run, _ = table.request("manual/1", "manual", "ann")

            (pod,) = awaited(namespace.pending, "pod")
            with process([RUN], env=pod_environment) as container:
                begun = Path(pod_environment["FORGEWATCH_UPDATER_WORK_DIR"]) / f"run-{run.id}"
                awaited((begun / "checkpoint.safetensors").is_file, "training", timeout_s=240)
                container.send_signal(signal.SIGTERM)
                assert container.wait(60) == 1
            namespace.evict(pod)
            (pod,) = awaited(namespace.pending, "second pod")
            with process([RUN], env=pod_environment) as container:
                assert container.wait(300) == 0
            namespace.end_pod(pod, exit_code=0)

            ended = table.get(run.id)
            assert (ended.state.startswith("proposed"), ended.takeovers) == (True, 0)
            assert [one["digest"] for one in httpx.get(f"{url}/releases").json()] == [ended.candidate]
            (job,) = namespace.jobs()
            awaited(lambda: namespace.jobs()[0]["status"].get("succeeded"), "complete job")
            assert not job["status"].get("failed"), "an eviction costs no try"
            awaited(lambda: ready().is_success, "readiness", timeout_s=120)
            light.send_signal(signal.SIGTERM)
            assert light.wait(30) == 0
            engine.dispose()

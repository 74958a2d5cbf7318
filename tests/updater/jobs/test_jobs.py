"""Runs as Jobs of a real API server, its controllers and its scheduler; the tests are the kubelet."""

import json
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from memory.database import open_engine
from updater.jobs import NO_POD_S, SLOW_START_S, Jobs, hindrance_of, name_of
from updater.kubernetes import Kubernetes
from updater.runs import RunTable

pytestmark = pytest.mark.slow

TEMPLATE = "forgewatch-update"


@pytest.fixture
def jobs(namespace, table):
    """What the updater's loop calls, allowed what the chart allows it, with the template in place."""
    namespace.allow()
    namespace.give_template()
    with Kubernetes(namespace.folder) as kubernetes:
        yield Jobs(table, kubernetes, TEMPLATE)


def request(table):
    return table.request("manual/1", "manual", "ann")[0]


def only(things):
    (thing,) = things
    return thing


def test_a_queued_run_becomes_one_job_of_the_template_by_any_updaters(namespace, table, jobs, awaited):
    run = request(table)
    with Kubernetes(namespace.folder) as kubernetes, ThreadPoolExecutor(8) as pool:
        updaters = [jobs, *(Jobs(table, kubernetes, TEMPLATE) for _ in range(7))]
        for said in pool.map(lambda one: one.carry(), updaters):
            assert said is None or "no node" in said
    job = only(namespace.jobs())
    assert job["metadata"]["name"] == name_of(TEMPLATE, run)
    assert job["metadata"]["labels"]["app"] == "forgewatch"
    assert job["metadata"]["labels"]["forgewatch.io/run"] == str(run.id)
    assert only(job["metadata"]["ownerReferences"])["name"] == TEMPLATE
    assert job["spec"]["backoffLimit"] == 1
    pod = only(awaited(namespace.pods, "pod"))
    assert pod["metadata"]["labels"]["forgewatch.io/run"] == str(run.id)
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "updater"
    assert jobs.carry() is None or "no node" in jobs.carry()
    assert len(namespace.jobs()) == 1


def test_a_run_that_finds_no_node_says_so_until_it_is_claimed(namespace, table, jobs, awaited):
    run = request(table)
    jobs.carry()
    said = awaited(jobs.carry, "complaint")
    assert re.fullmatch(rf"update {run.id} waits: Job \S+: no node for pod \S+: no nodes available.*", said)
    assert (table.get(run.id).state, table.get(run.id).error) == ("queued", said)
    lease = table.claim("pod")
    assert table.get(run.id).error is None
    assert jobs.carry() is None
    table.finish(lease, "refused", error="nothing new")
    assert jobs.carry() is None


def test_a_job_that_gives_up_before_the_update_ends_the_run_with_why(namespace, table, jobs, awaited):
    run = request(table)
    jobs.carry()
    for _ in range(2):  # one try and one more, by the template's backoffLimit
        namespace.end_pod(only(awaited(namespace.pending, "pod")), exit_code=1)
    awaited(lambda: jobs.carry() is None and table.get(run.id).state == "failed", "end of the run")
    assert "BackoffLimitExceeded" in table.get(run.id).error
    assert jobs.carry() is None
    assert len(namespace.jobs()) == 1


def test_a_wrong_setting_ends_the_job_at_its_first_try(namespace, table, jobs, awaited):
    run = request(table)
    jobs.carry()
    namespace.end_pod(only(awaited(namespace.pending, "pod")), exit_code=2)
    awaited(lambda: jobs.carry() is None and table.get(run.id).state == "failed", "end of the run")
    assert "exit code 2" in table.get(run.id).error
    assert len(namespace.pods()) == 1


def test_an_evicted_pod_costs_no_try(namespace, table, jobs, awaited):
    run = request(table)
    jobs.carry()
    namespace.evict(only(awaited(namespace.pending, "pod")))
    awaited(namespace.pending, "second pod")
    assert "failed" not in only(namespace.jobs())["status"]
    jobs.carry()
    assert table.get(run.id).state == "queued"


def test_a_run_whose_job_was_deleted_gets_another_once_nobody_holds_it(namespace, table, jobs):
    run = request(table)
    jobs.carry()
    lease = table.claim("pod")
    namespace.delete("apis/batch/v1", "jobs", only(namespace.jobs())["metadata"]["name"])
    jobs.carry()
    assert namespace.jobs() == [], "the pod may still be at work"
    table.release(lease)
    jobs.carry()
    assert only(namespace.jobs())["metadata"]["name"] == name_of(TEMPLATE, table.get(run.id))


def test_a_run_that_waits_for_deploy_goes_on_in_another_job(namespace, table, jobs, awaited):
    run = request(table)
    jobs.carry()
    for _ in range(2):
        pod = only(awaited(namespace.pending, "pod"))
        table.release(table.claim("pod"), error="waits: deploy does not answer")
        namespace.end_pod(pod, exit_code=1)

    def second():
        jobs.carry()
        return len(namespace.jobs()) == 2

    awaited(second, "second job")
    assert table.get(run.id).state == "queued"


def test_a_job_of_another_database_is_not_taken_for_this_ones(namespace, table, jobs, tmp_path):
    request(table)
    jobs.carry()
    engine = open_engine(f"sqlite:///{tmp_path / 'anew.sqlite'}")
    anew = RunTable(engine, lease_s=60, max_takeovers=2)
    again = request(anew)
    with Kubernetes(namespace.folder) as kubernetes:
        Jobs(anew, kubernetes, TEMPLATE).carry()
    engine.dispose()
    assert again.id == request(table).id
    assert len(namespace.jobs()) == 2


def test_jobs_go_with_their_template(namespace, table, jobs, awaited):
    request(table)
    jobs.carry()
    namespace.delete("apis/batch/v1", "cronjobs", TEMPLATE)
    awaited(lambda: not namespace.jobs(), "collection of the job")


def test_without_rights_it_says_which_and_goes_on_once_they_are_given(namespace, table, awaited):
    namespace.give_template()
    request(table)
    with Kubernetes(namespace.folder) as kubernetes:
        jobs = Jobs(table, kubernetes, TEMPLATE)
        said = jobs.carry()
        assert f'cannot list resource "jobs" in API group "batch" in the namespace "{namespace.name}"' in said
        assert "a Role in its namespace" in said
        namespace.allow()
        awaited(lambda: jobs.carry() is None, "rights")
    assert len(namespace.jobs()) == 1


@pytest.mark.parametrize("kind", ["cronjobs", "jobs", "pods"])
def test_a_right_that_is_missing_is_said_before_any_update_is_due(namespace, table, kind, awaited):
    namespace.give_template()
    namespace.allow(but=[kind])
    with Kubernetes(namespace.folder) as kubernetes:
        said = awaited(Jobs(table, kubernetes, TEMPLATE).carry, "complaint")
    assert f"cannot {'get' if kind == 'cronjobs' else 'create' if kind == 'jobs' else 'list'}" in said


def test_a_missing_template_is_said_before_any_update_and_leaves_nothing(namespace, table, awaited):
    namespace.allow()
    with Kubernetes(namespace.folder) as kubernetes:
        jobs = Jobs(table, kubernetes, TEMPLATE)
        said = awaited(lambda: (said := jobs.carry()) and "there is no" in said and said, "complaint")
        assert f"no CronJob {TEMPLATE} in the namespace {namespace.name}" in said
        namespace.give_template()
        assert jobs.carry() is None
    assert namespace.jobs() == []


def test_a_quota_that_admits_no_job_is_said_before_any_update_is_due(namespace, table, jobs, awaited):
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"count/jobs.batch": "0"}}}
    namespace.server.post(namespace.path("api/v1", "resourcequotas"), quota)

    def refused():
        with Kubernetes(namespace.folder) as kubernetes:
            return Jobs(table, kubernetes, TEMPLATE).carry()

    assert "exceeded quota" in awaited(refused, "complaint")


NOW = datetime(2025, 1, 1, tzinfo=UTC)


def metadata(age_s):
    made = NOW - timedelta(seconds=age_s)
    return {"name": "forgewatch-x", "creationTimestamp": f"{made:%Y-%m-%dT%H:%M:%SZ}"}


def job(age_s=0, **status):
    return {"metadata": metadata(age_s), "spec": {}, "status": status}


def pod(age_s=0, **status):
    return {"metadata": metadata(age_s), "status": {"phase": "Pending"} | status}


def waiting(reason, message=""):
    return {"state": {"waiting": {"reason": reason, "message": message}}}


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ([pod(conditions=[{"type": "PodScheduled", "status": "False", "message": "no GPU free"}])], "no GPU"),
        ([pod(containerStatuses=[waiting("ImagePullBackOff", "back-off")])], "ImagePullBackOff: back-off"),
        ([pod(initContainerStatuses=[waiting("CreateContainerConfigError", "no secret")])], "no secret"),
        ([pod(SLOW_START_S + 1, containerStatuses=[waiting("ContainerCreating")])], "does not start"),
        ([pod(phase="Failed"), pod(containerStatuses=[waiting("ErrImagePull")])], "ErrImagePull"),
    ],
)
def test_what_keeps_a_pod_from_starting_is_told_by_its_name(pods, said):
    found = hindrance_of(job(), pods, NOW)
    assert said in found
    assert "forgewatch-x" in found


@pytest.mark.parametrize(
    "pods",
    [
        [pod()],
        [pod(containerStatuses=[waiting("ContainerCreating")])],
        [pod(containerStatuses=[waiting("PodInitializing")])],
        [pod(containerStatuses=[{"state": {"running": {}}}])],
        [pod(SLOW_START_S + 1, phase="Running")],
    ],
)
def test_a_pod_that_starts_or_runs_is_no_hindrance(pods):
    assert hindrance_of(job(), pods, NOW) is None


def test_a_job_that_gets_no_pod_is_told_of_unless_it_only_pauses_between_two():
    assert hindrance_of(job(NO_POD_S - 1), [], NOW) is None
    assert "kubectl describe job forgewatch-x" in hindrance_of(job(NO_POD_S + 1), [], NOW)
    assert hindrance_of(job(NO_POD_S + 1, failed=1), [], NOW) is None


def test_a_suspended_job_is_told_of():
    assert hindrance_of(job() | {"spec": {"suspend": True}}, [], NOW) == "it is suspended"


# An update by a Job of a real API server, from the schedule to a proposal, with an eviction between.
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


def test_an_evicted_update_is_proposed_once(namespace, environment, remember, deploy_server, awaited):
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

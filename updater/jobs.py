"""A run as a Kubernetes Job: made once from a suspended CronJob's template, then looked after by its row.

The row alone says who carries a run: a Job's pod claims it with a lease as every runner does. So a Job too
many does no harm, and a run whose Job is gone is seen to be nobody's when its lease ends. A Job is named by
its run and by how often the run was claimed: updaters that look at once make it once, and a Job that ended
before the run did is followed by one of another name.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

import structlog

from ingest.process.frame import WrongSettingError
from updater.kubernetes import Kubernetes, KubernetesError, NoClusterError, Object
from updater.metrics import PROGRESS
from updater.records import UpdateRun
from updater.runs import RunTable, utc_now
from updater.worker import Carry

REHEARSE_EVERY_S = 60.0

log = structlog.get_logger()


@contextmanager
def carrying_as_jobs(table: RunTable, template: str) -> Iterator[Carry]:
    """Yield a function that carries runs out as Jobs of this cluster. Raises WrongSettingError outside."""
    try:
        kubernetes = Kubernetes()
    except NoClusterError as error:
        raise WrongSettingError("FORGEWATCH_UPDATER_JOB_TEMPLATE", str(error)) from error
    with kubernetes:
        yield Jobs(table, kubernetes, template).carry


class Jobs:
    """Gives the run that is next its Job, from the CronJob of this name."""

    def __init__(self, table: RunTable, kubernetes: Kubernetes, template: str) -> None:
        self._table = table
        self._kubernetes = kubernetes
        self._template = template
        self._rehearse_at = 0.0
        self._said: str | None = None

    def carry(self) -> str | None:
        """Do the work that is due; returns in one line a run's hindrance, or the next one's.

        Raises SQLAlchemyError.
        """
        try:
            run = self._table.claimable()
            running = [run for run in self._table.newest() if run.state == "running" and run.total]
            PROGRESS.set(running[0].done / running[0].total if running else 0)
            problem = self._rehearse() if run is None else self._looked_after(run)
        except KubernetesError as error:
            problem = str(error)
        if problem and problem != self._said:
            log.warning("update cannot run as a job", problem=problem)
        self._said = problem
        return problem

    def _looked_after(self, run: UpdateRun) -> str | None:
        jobs = self._kubernetes.jobs(labels(run))
        if alive := [job for job in jobs if end_reason(job) is None]:
            return self._waiting(run, alive[0])
        over, name = {job["metadata"]["name"]: end_reason(job) for job in jobs}, name_of(self._template, run)
        if name in over:
            # Else its name would be an earlier one: to claim the run is the first thing that a pod does.
            self._give_up(run, name, over[name])
        elif self._kubernetes.create_job(
            job_of(self._kubernetes.cron_job(self._template), name, labels(run))
        ):
            log.info("job created", run=run.id, job=name, before=over)
        return None

    def _give_up(self, run: UpdateRun, name: str, reason: str | None) -> None:
        text = f"Job {name} ended before the update began: {reason}; see its pods' log, then ask for another"
        if self._table.give_up(run, text):
            log.error("update failed", run=run.id, error=text)

    def _waiting(self, run: UpdateRun, job: Object) -> str | None:
        name = job["metadata"]["name"]
        pods = self._kubernetes.pods({"batch.kubernetes.io/job-name": name})
        hindrance = hindrance_of(job, pods, utc_now())
        if hindrance is None:
            return None
        problem = f"update {run.id} waits: Job {name}: {hindrance}"
        if run.state == "queued" and run.error != problem:
            self._table.explain(run, problem)
        return problem

    def _rehearse(self) -> str | None:
        if time.monotonic() >= self._rehearse_at:
            rehearsal = rehearsal_of(self._kubernetes.cron_job(self._template))
            self._kubernetes.create_job(rehearsal, rehearse=True)
            self._kubernetes.jobs({RUN: "0"})
            self._kubernetes.pods({RUN: "0"})
            self._rehearse_at = time.monotonic() + REHEARSE_EVERY_S
        return None


RUN, REQUEST = "forgewatch.io/run", "forgewatch.io/request"
"""Labels of a Job and of its pods: the run's id, and what tells runs of different databases apart."""
NAME_CHARACTERS = 63
"""A Job's name is a label's value on its pods, and those are no longer."""
NO_POD_S = 60.0
"""A Job without a pod for longer is refused one, by a quota or by the namespace's pod security."""
SLOW_START_S = 600.0
"""A pod that has a node and does not start for longer lacks a volume or a Secret: an image comes sooner."""


def labels(run: UpdateRun) -> dict[str, str]:
    """Return the labels by which a run's Jobs and pods are found."""
    request = hashlib.sha256(f"{run.slot} {run.requested_at.isoformat()}".encode()).hexdigest()
    return {RUN: str(run.id), REQUEST: request[:8]}


def name_of(template: str, run: UpdateRun) -> str:
    """Return the name of the Job of a run that was claimed so often: the same wherever it is asked for."""
    return _job_name(template, f"{run.id}-{labels(run)[REQUEST]}-{run.token}")


def rehearsal_of(template: Object) -> Object:
    """Return a Job that is only rehearsed, of no run."""
    return job_of(template, _job_name(template["metadata"]["name"], "rehearsal"), {})


def _job_name(template: str, end: str) -> str:
    return f"{template[: NAME_CHARACTERS - 1 - len(end)].rstrip('-.')}-{end}"


def job_of(template: Object, name: str, labels: dict[str, str]) -> Object:
    """Return the Job that a CronJob's template stands for, with these labels on it and on its pods."""
    metadata, wanted = template["metadata"], template["spec"]["jobTemplate"]
    own, pod = wanted.get("metadata", {}), wanted["spec"]["template"]
    pod_metadata = pod.get("metadata", {})
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "controller": True}
    owner |= {"name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": own.get("labels", {}) | labels,
            "annotations": own.get("annotations", {}) | {"cronjob.kubernetes.io/instantiate": "manual"},
            "ownerReferences": [owner],
        },
        "spec": wanted["spec"]
        | {
            "template": pod | {"metadata": pod_metadata | {"labels": pod_metadata.get("labels", {}) | labels}}
        },
    }


def end_reason(job: Object) -> str | None:
    """Return in which way a Job has ended, and why; None where its controller still makes pods."""
    for condition in job.get("status", {}).get("conditions", []):
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            parts = (condition["type"], condition.get("reason"), condition.get("message"))
            return ": ".join(filter(None, parts))
    return None


def hindrance_of(job: Object, pods: Sequence[Object], now: datetime) -> str | None:
    """Return the hindrance of a Job that has not ended, as far as its pods say; None: it has none."""
    if job["spec"].get("suspend"):
        return "it is suspended"
    if not pods:
        refused = _age_s(job, now) > NO_POD_S and not job.get("status", {}).get("failed")
        return f"it gets no pod: kubectl describe job {job['metadata']['name']}" if refused else None
    for pod in pods:
        status, name = pod.get("status", {}), pod["metadata"]["name"]
        if status.get("phase") != "Pending":
            continue
        for condition in status.get("conditions", []):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return f"no node for pod {name}: {condition.get('message', condition.get('reason'))}"
        for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
            waiting = container["state"].get("waiting", {})
            if waiting.get("reason", "PodInitializing") not in ("PodInitializing", "ContainerCreating"):
                return f"pod {name}: {waiting['reason']}: {waiting.get('message', '')}"
        if _age_s(pod, now) > SLOW_START_S:
            return f"pod {name} does not start: kubectl describe pod {name}"
    return None


def _age_s(thing: Object, now: datetime) -> float:
    return (now - datetime.fromisoformat(thing["metadata"]["creationTimestamp"])).total_seconds()

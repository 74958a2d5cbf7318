"""The Job of a run: what it is called, what is in it, how it ended, and what keeps it from running. Pure."""

import hashlib
from collections.abc import Sequence
from datetime import datetime

from updater.jobs.kubernetes import Object
from updater.records import UpdateRun

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
    return _named(template, f"{run.id}-{labels(run)[REQUEST]}-{run.token}")


def rehearsal_of(template: Object) -> Object:
    """Return a Job that is only rehearsed, of no run."""
    return job_of(template, _named(template["metadata"]["name"], "rehearsal"), {})


def _named(template: str, end: str) -> str:
    return f"{template[: NAME_CHARACTERS - 1 - len(end)].rstrip('-.')}-{end}"


def job_of(template: Object, name: str, labels: dict[str, str]) -> Object:
    """Return the Job that a CronJob's template stands for, with these labels on it and on its pods."""
    metadata, wanted = template["metadata"], template["spec"]["jobTemplate"]
    own, pod = wanted.get("metadata", {}), wanted["spec"]["template"]
    pod_metadata = pod.get("metadata", {})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": own.get("labels", {}) | labels,
            "annotations": own.get("annotations", {}) | {"cronjob.kubernetes.io/instantiate": "manual"},
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "CronJob",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": wanted["spec"]
        | {
            "template": pod | {"metadata": pod_metadata | {"labels": pod_metadata.get("labels", {}) | labels}}
        },
    }


def ended(job: Object) -> str | None:
    """Return in which way a Job has ended, and why; None where its controller still makes pods."""
    for condition in job.get("status", {}).get("conditions", []):
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            said = (condition["type"], condition.get("reason"), condition.get("message"))
            return ": ".join(filter(None, said))
    return None


def hindrance_of(job: Object, pods: Sequence[Object], now: datetime) -> str | None:
    """Return what keeps a Job that has not ended from running, as far as its pods say; None: nothing does."""
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

from datetime import UTC, datetime, timedelta

import pytest

from updater.jobs.job import NO_POD_S, SLOW_START_S, hindrance_of

NOW = datetime(2025, 1, 1, tzinfo=UTC)


def metadata(age_s):
    return {
        "name": "forgewatch-x",
        "creationTimestamp": f"{NOW - timedelta(seconds=age_s):%Y-%m-%dT%H:%M:%SZ}",
    }


def job(age_s=0, **status):
    return {"metadata": metadata(age_s), "spec": {}, "status": status}


def pod(age_s=0, **status):
    return {"metadata": metadata(age_s), "status": {"phase": "Pending"} | status}


def waiting(reason, message=""):
    return {"state": {"waiting": {"reason": reason, "message": message}}}


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        (
            [pod(conditions=[{"type": "PodScheduled", "status": "False", "message": "no GPU is free"}])],
            "no GPU",
        ),
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
    held = job() | {"spec": {"suspend": True}}
    assert hindrance_of(held, [], NOW) == "it is suspended"

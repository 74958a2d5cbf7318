"""While the chart is scaled, upgraded and disturbed, each item gets one answer: none lost, none twice."""

import subprocess

import pytest
from kafka import KafkaProducer

pytestmark = pytest.mark.cluster

PROCESSES = ("deployment/detector", "deployment/deploy", "deployment/updater", "statefulset/memory")


def scale_out(chart):
    chart.scale(3)
    assert len(chart.pods("detector")) == 3


def scale_in(chart):
    chart.scale(1)
    # With those that are still ending: they hand their partitions over.
    chart.kubectl.until("one detector", lambda: len(chart.kubectl.get("pods", "-l", DETECTORS)["items"]) == 1)


def other_image(chart):
    """The same images under another tag, as far as the pods can tell another version: each is made anew."""
    for component in ("detector", "deploy", "updater", "memory"):
        (pod,) = chart.pods(component)
        for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
            name = container["image"]
            ctr("images", "tag", "--force", name, name.rpartition(":")[0] + ":next")
    chart.upgrade("image.tag=next")
    assert {image(pod).rpartition(":")[2] for pod in chart.pods("detector")} == {"next"}


def back(chart):
    chart.rollback()
    chart.rolled_out(*PROCESSES)
    assert "next" not in {image(pod).rpartition(":")[2] for pod in chart.pods("detector")}


def killed(chart):
    """The worker's container ends without a word; the kubelet starts it again."""
    (pod,) = chart.pods("detector")
    worker = next(each for each in pod["status"]["containerStatuses"] if each["name"] == "worker")
    ctr("tasks", "kill", "--signal", "SIGKILL", worker["containerID"].removeprefix("containerd://"))
    chart.kubectl.until(
        "the worker is started again",
        lambda: any(
            each["restartCount"] > worker["restartCount"] and each["ready"]
            for each in chart.pods("detector")[0]["status"]["containerStatuses"]
            if each["name"] == "worker"
        ),
    )


def deleted(chart):
    """The whole pod goes at once, as with its node."""
    (pod,) = chart.pods("detector")
    chart.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")
    chart.rolled_out("deployment/detector")


def drained(chart):
    """The only node: every pod is evicted, and may come back once the node takes pods again."""
    chart.kubectl("drain", "node1", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=5m")
    assert not any(
        chart.pods(component) and running(chart, component) for component in ("detector", "deploy")
    )
    chart.kubectl("uncordon", "node1")
    chart.rolled_out(*PROCESSES)


CHANGES = {
    "scaled 1 to 3": scale_out,
    "scaled 3 to 1": scale_in,
    "upgraded to other values": lambda chart: chart.upgrade("settings.detector.max_batch_items=16"),
    "upgraded to another image tag": other_image,
    "rolled back by helm": back,
    "a worker killed": killed,
    "a pod deleted without grace": deleted,
    "the node drained": drained,
}


@pytest.mark.parametrize("what", CHANGES)
def test_each_item_has_one_answer_while(chart, stream, what):
    change = CHANGES[what]
    with stream.loaded(what):
        change(chart)
    row = stream.rows[-1]
    assert row.verdicts
    assert row.dead_letters
    assert (row.lost, row.twice) == (0, 0)


def test_what_is_sent_while_no_detector_runs_is_answered_later(chart, stream):
    """Before it is answered it counts as lost, so that the count can find what is."""
    chart.scale(0)
    chart.kubectl.until("no detector", lambda: not chart.kubectl.get("pods", "-l", DETECTORS)["items"])
    sent = stream.send(4)
    stream.await_answers(sent, timeout_s=3)
    assert stream.count("", sent, 0).lost == 4
    chart.scale(1)
    stream.await_answers(sent)
    assert (stream.count("", sent, 0).lost, stream.count("", sent, 0).twice) == (0, 0)


def test_over_all_that_was_sent_nothing_is_lost_or_doubled_and_the_count_would_see_it(kafka, stream):
    row = stream.count("in all", stream.traffic.sent, sum(row.seconds for row in stream.rows))
    stream.rows.append(row)
    assert (row.lost, row.twice) == (0, 0)
    answers = stream.traffic.verdicts
    verdict = next(answers[item.id] for item in stream.traffic.sent if item.id in answers)
    producer = KafkaProducer(bootstrap_servers=kafka.broker.bootstrap)
    producer.send("forgewatch.verdicts", verdict.model_dump_json().encode(), key=b"a second answer").get(30)
    producer.close()
    assert stream.await_that(lambda: stream.count("", stream.traffic.sent, 0).twice == 1)


DETECTORS = "app.kubernetes.io/component=detector"


def image(pod):
    return str(pod["spec"]["containers"][0]["image"])


def running(chart, component):
    return any(pod["status"]["phase"] == "Running" for pod in chart.pods(component))


def ctr(*arguments):
    subprocess.run(["ctr", "-n", "k8s.io", *arguments], check=True, capture_output=True)

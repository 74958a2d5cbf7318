"""Where a Secret, the right password or a bucket is missing, the pod says why, and nothing is lost."""

import json
import re
import shlex

import pytest

pytestmark = pytest.mark.cluster


def test_without_its_secret_the_pod_waits_and_says_which(chart, stream, secrets):
    with stream.loaded("the Kafka Secret is missing"):
        chart.kubectl("delete", "secret", "kafka")
        chart.renew("detector")
        said = chart.waits_for("detector", 'secret "kafka" not found')
        assert not chart.ready("detector")
        chart.bring({"kafka": secrets["kafka"]})
        chart.rolled_out("deployment/detector")
    print(f"  {said}")
    assert (stream.rows[-1].lost, stream.rows[-1].twice) == (0, 0)


def test_a_broker_that_refuses_is_named_in_the_log_and_by_describe(chart, stream, secrets):
    with stream.loaded("the broker refuses the password"):
        chart.bring({"kafka": secrets["kafka"] | {"password": "wrong"}})
        chart.renew("detector")
        said = chart.describes("detector", "cannot start")
        assert not chart.ready("detector")
        chart.bring({"kafka": secrets["kafka"]})
        chart.rolled_out("deployment/detector")
    print(f"  {said}")
    assert "user forgewatch is not let in" in reason(said)
    assert "wrong" not in said  # the password
    assert (stream.rows[-1].lost, stream.rows[-1].twice) == (0, 0)


def test_a_larger_volume_of_the_index_is_refused_and_the_command_that_is_printed_brings_it(chart, stream):
    with stream.loaded("the index gets a larger volume"):
        size = ("--reset-then-reuse-values", "--set", "memory.index.size=3Gi")
        said = chart.kubectl.helm("upgrade", chart.name, str(chart.path), *size, check=False)
        (command,) = re.findall(r"^ +kubectl -n \S+ (.*)$", said, re.MULTILINE)
        chart.kubectl(*shlex.split(command))
        chart.upgrade("memory.index.size=3Gi")
        chart.rolled_out("statefulset/memory")
        (claim,) = chart.kubectl.get("pvc", "-l", "app.kubernetes.io/component=memory")["items"]
        assert claim["spec"]["resources"]["requests"]["storage"] == "3Gi"
    assert (stream.rows[-1].lost, stream.rows[-1].twice) == (0, 0)


def test_a_secret_that_is_missing_is_named_before_an_upgrade_changes_anything(chart, secrets):
    chart.kubectl("delete", "secret", "database")
    said = chart.kubectl.helm(
        "upgrade", chart.name, str(chart.path), "--reset-then-reuse-values", check=False
    )
    chart.bring({"database": secrets["database"]})
    assert f"database.secret is database, but the namespace {chart.kubectl.namespace} has no" in said


@pytest.mark.parametrize(("value", "component"), [("cropsUrl", "memory"), ("artifactsUrl", "deploy")])
def test_a_bucket_that_is_not_there_is_named(chart, stream, value, component):
    with stream.loaded(f"the bucket of {value} is not there"):
        # A bucket for each, since this store makes a bucket of whatever is written to one that it lacks. The
        # environment, which `describe` shows as well, has the bucket's name and no such words.
        chart.upgrade(f"objectStore.{value}=s3://nowhere-{component}/it", wait=False)
        said = chart.describes(component, f"no bucket nowhere-{component}")
        assert not chart.ready(component)
        chart.rollback()
        chart.rolled_out("statefulset/memory", "deployment/deploy", "deployment/detector")
    print(f"  {said}")
    assert (stream.rows[-1].lost, stream.rows[-1].twice) == (0, 0)


def reason(said):
    """What a log line gives as the error."""
    return str(json.loads(said[said.index("{") : said.rindex("}") + 1])["error"])

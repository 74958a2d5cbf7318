"""Checks of a running stack, from broker to lag. Each returns its result."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from deploy.client.connection import ClientError, ServerRefusedError
from deploy.client.http import Client
from deploy.client.prometheus import PrometheusError, firing_alerts, hide_login
from deploy.doctor.host import CheckError, NotHereError
from deploy.layouts import examine_topics
from deploy.local.processes import StackError
from deploy.local.record import HOME, kept_alive
from deploy.records import PartitionLag
from deploy.server.status import processes_health
from deploy.settings import DeploySettings
from detector.release.artifact import version_of
from detector.serving.torchserve import TorchServe, TorchServeError
from detector.settings import DetectorSettings
from ingest.kafka.access import auth_problem, kafka_options
from ingest.settings import IngestSettings

_WATCH_LAG_S = 3.0


def broker() -> str:
    """Somebody answers at the bootstrap servers."""
    settings = IngestSettings()
    if problem := auth_problem(kafka_options(settings), DeploySettings().kafka_timeout_s):
        raise CheckError(
            problem, "start it (`forgewatch up`), or see the FORGEWATCH_INGEST_… settings of the broker"
        )
    try:
        admin = KafkaAdminClient(**kafka_options(settings), bootstrap_timeout_ms=_timeout_ms())
        brokers = admin.describe_cluster()["brokers"]
        admin.close()
    except KafkaError as error:
        raise CheckError(
            f"{settings.bootstrap_servers} does not answer: {error}",
            "see FORGEWATCH_INGEST_SECURITY_PROTOCOL and the SASL and TLS settings",
        ) from error
    return f"{len(brokers)} broker{'s' if len(brokers) != 1 else ''} at {settings.bootstrap_servers}"


def topics() -> str:
    """The topics exist, and are set so that records stay, fit and are read."""
    ingest = IngestSettings()
    if problem := auth_problem(kafka_options(ingest), DeploySettings().kafka_timeout_s):
        raise CheckError(problem, "see the check of the broker")
    try:
        report = examine_topics(ingest, _timeout_ms())
    except KafkaError as error:
        raise CheckError(f"the broker cannot be asked: {error}", "see the check of the broker") from error
    if report.missing:
        raise CheckError(f"missing: {', '.join(report.missing)}", "create them: forgewatch topics")
    if report.problems:
        raise CheckError(*("; ".join(dict.fromkeys(part)) for part in zip(*report.problems, strict=True)))
    return f"all are there, and set as they must be{report.note}"


def server() -> str:
    """The deploy server answers and publishes."""
    with open_api() as api:
        problem = api.status().publish_problem
    if problem:
        raise CheckError(f"it does not publish: {problem}", "see the checks of broker and releases topic")
    return f"{DeploySettings().url} answers"


def torchserve() -> str:
    """The live release has a ready worker."""
    settings = DetectorSettings()
    scheme, _, path = settings.torchserve_management_url.partition(":")
    if scheme == "unix" and not Path(path).parent.is_dir():
        raise NotHereError(f"there is no {path}; *served release* asks the detectors themselves")
    with open_api() as api:
        rollout = api.rollout()
    try:
        with TorchServe(settings) as torchserve:
            versions = torchserve.versions()
    except TorchServeError as error:
        raise CheckError(str(error), "start TorchServe; the detector waits for it, losing nothing") from error
    if rollout is None:
        return "answers; no release is live yet"
    wanted = version_of(rollout.stable)
    if not versions.get(wanted):
        raise CheckError(
            f"the live release {wanted} has no ready worker",
            "see the detector's log and TorchServe's model log",
        )
    return f"the live release {wanted} has a ready worker"


def processes() -> str:
    """Every process answers at its metrics address."""
    health = processes_health(DeploySettings().health_urls)
    if down := [f"{process.name}: {process.problem}" for process in health if not process.alive]:
        raise CheckError("; ".join(down), "start it; see FORGEWATCH_DEPLOY_HEALTH_URLS if it runs elsewhere")
    return f"{', '.join(process.name for process in health)} answer"


def check_processes() -> str:
    """The processes of this folder's own stack run, or are being brought back."""
    try:
        kept = kept_alive()
        if not kept:
            raise NotHereError("no stack of `forgewatch up` was started in this folder")
    except StackError as error:
        raise CheckError(str(error).partition("\n")[0], "start the stack anew: `forgewatch up`") from error
    if down := [f"{part.name} is {part.state} ({part.why or 'by hand'})" for part in kept if part.given_up]:
        raise CheckError(
            "; ".join(down), f"read its log below {HOME / 'run'}, mend the fault, and `forgewatch up`"
        )
    again = [f"{part.name} {part.restarts} times ({part.why})" for part in kept if part.restarts]
    return f"restarted: {', '.join(again)}" if again else "nothing had to be restarted"


def lag() -> str:
    """Waiting records are being read."""
    before = _behind()
    if not any(part.lag for part in before):
        return "nothing waits"
    time.sleep(_WATCH_LAG_S)
    looks = zip(before, _behind(), strict=True)
    still = [new for old, new in looks if old.lag and new.lag and new.committed == old.committed]
    stuck = [
        f"{part.group} stands still on {part.topic}/{part.partition} with {part.lag} to read"
        + f", {part.held_back} of them behind an open transaction" * bool(part.held_back)
        for part in still
    ]
    if stuck:
        advice = "see that a release is live and that detector and memory run; read their logs"
        if all(part.lag == part.held_back for part in still):
            advice = "its producer must commit or abort; the broker does so after its transaction.timeout.ms"
        raise CheckError("; ".join(stuck), advice)
    return f"{sum(part.lag for part in before)} records wait, and are being read"


def _behind() -> list[PartitionLag]:
    with open_api() as api:
        status = api.status()
    if status.lag_problem:
        raise CheckError(status.lag_problem, "see the checks of the broker and the topics")
    return status.lag


@contextmanager
def open_api() -> Iterator[Client]:
    """A client of the deploy server; raises CheckError where it refuses a call."""
    try:
        with Client(DeploySettings(), "doctor") as api:
            yield api
    except ClientError as error:
        start = "start the deploy server: `forgewatch up`, or `python -m deploy`"
        advice = "do what it says" if isinstance(error, ServerRefusedError) else start
        raise CheckError(str(error), advice) from error


def _timeout_ms() -> int:
    return int(DeploySettings().kafka_timeout_s * 1000)


def alerts() -> str:
    """No alert of Forgewatch fires."""
    url = DeploySettings().prometheus_url
    if url is None:
        raise NotHereError("FORGEWATCH_DEPLOY_PROMETHEUS_URL is not set; `forgewatch up` starts one it finds")
    try:
        firing = firing_alerts(url)
    except PrometheusError as error:
        raise CheckError(str(error), "start it, or see FORGEWATCH_DEPLOY_PROMETHEUS_URL") from error
    if firing:
        raise CheckError(
            "; ".join(f"{alert.name}: {alert.description}" for alert in firing),
            f"read {' and '.join(dict.fromkeys(alert.runbook_url for alert in firing))}",
        )
    return f"none fires at {hide_login(url)}"

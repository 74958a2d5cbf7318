"""Checks of serving: the ledger itself, the releases topic against it, the workers against it."""

import httpx

from deploy.client.connection import ClientError
from deploy.client.http import Client
from deploy.client.prometheus import scored_by
from deploy.doctor.host import CheckError
from deploy.doctor.stack import open_api
from deploy.release_records import LedgerEntry
from deploy.releases.publish import RECHECK_INTERVAL_S, read_topic
from deploy.server.status import processes_health
from deploy.settings import DeploySettings
from detector.records import NO_RELEASE, RELEASES, Rollout
from detector.release.artifact import MANIFEST, version_of
from ingest.kafka.access import kafka_options
from ingest.kafka.topics import TopicError
from ingest.settings import IngestSettings

_ONE_WRITER = (
    "let one deploy server alone write to the topic: end the other or give its topics a prefix of their own "
    "(FORGEWATCH_INGEST_TOPIC_PREFIX), and let the broker's ACLs refuse everybody else"
)


def ledger() -> str:
    """Every row of the ledger is as it was written."""
    try:
        with Client(DeploySettings(), "doctor") as api:
            events = api.ledger()
    except ClientError as error:
        advice = "follow the message; where nobody answers, see the check of the deploy server"
        raise CheckError(str(error), advice) from error
    return f"{len(events)} events, none changed"


def topic() -> str:
    """The releases topic, read as a worker does, agrees with the ledger."""
    settings = DeploySettings()
    with open_api() as api:
        wanted, raises = api.rollout(), api.status().epoch_raises
    try:
        ingest = IngestSettings()
        content = read_topic(kafka_options(ingest), ingest.topic(RELEASES), settings.kafka_timeout_s)
    except TopicError as error:
        raise CheckError(str(error), "bring the broker back and see that the topic exists") from error
    if content.newest != wanted:
        raise CheckError(
            f"the newest record of the topic names {_name(content.newest)}; the ledger says {_name(wanted)}",
            f"wait {RECHECK_INTERVAL_S:g} s for the server to mend it; else see `forgewatch status`",
        )
    if len(raises) > 1:
        text = f"another's rollout was outranked {len(raises)} times within a day, last {_why(raises[-1])}"
        raise CheckError(text, _ONE_WRITER)
    return f"topic and ledger agree{f', since the epoch was raised {_why(raises[0])}' if raises else ''}"


def artifacts() -> str:
    """The artifacts that the ledger wants served, or would return to, can be had."""
    with open_api() as api:
        rollout = api.rollout()
        if rollout is None:
            return "no release is live yet"
        wanted = {name for name in (rollout.stable, rollout.canary, rollout.previous) if name}
        for digest in sorted(wanted):
            try:
                api.file(digest, MANIFEST)
            except ClientError as error:
                raise CheckError(
                    f"release {version_of(digest)}: {error}",
                    "restore it below FORGEWATCH_DEPLOY_ARTIFACTS_URL; detectors that have it go on",
                ) from error
    return f"{len(wanted)} artifacts are there"


def check_served() -> str:
    """The detectors score by the release that the ledger says, and complain of nothing else."""
    with open_api() as api:
        rollout = api.rollout()
    answered = processes_health(DeploySettings().health_urls)
    if rollout is None:  # then a detector waits for one, and no more is wrong with it
        answered = [slot for slot in answered if slot.problem != NO_RELEASE]
    if troubled := [f"{slot.name}: {slot.problem}" for slot in answered if slot.alive and slot.problem]:
        raise CheckError("; ".join(troubled), "see its log for its attempts")
    slots = DeploySettings().health_urls.items()
    scoring = {name: _scores_by(name, address) for name, address in slots if name.startswith("detector")}
    if rollout is None:
        return "no release is live yet"
    wanted = {version_of(digest) for digest in (rollout.stable, rollout.canary) if digest}
    for name, served in scoring.items():
        if served != wanted:
            raise CheckError(
                f"{name} scores by {' and '.join(sorted(served)) or 'no release'}, "
                f"the ledger says {' and '.join(sorted(wanted))}",
                "wait until it is loaded; where the detector's log says that it was taken out, roll back",
            )
    return f"{', '.join(scoring) or 'no detector'} scores by {' and '.join(sorted(wanted))}"


def _scores_by(name: str, address: str) -> set[str]:
    try:
        return scored_by(address)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        advice = "start it; see FORGEWATCH_DEPLOY_HEALTH_URLS where it runs elsewhere"
        raise CheckError(f"{name} does not name the release that it scores by: {error}", advice) from error


def _name(rollout: Rollout | None) -> str:
    if rollout is None:
        return "nothing"
    return (
        f"release {version_of(rollout.stable)} (ledger {rollout.ledger[:12]}, epoch {rollout.epoch}, "
        f"sequence {rollout.sequence})"
    )


def _why(raised: LedgerEntry) -> str:
    return f"at {raised.at:%Y-%m-%d %H:%M} UTC: {raised.reason}"

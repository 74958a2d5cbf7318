"""A worker's requests to deploy: the desired rollout, and artifacts, whole or not at all.

Deploy is asked whenever the releases topic names something new. Whoever may write to the topic can write
anything, and a compacted topic keeps it for ever; so a record is a notification, and deploy's answer is the
authority. Where deploy cannot be asked, its last answer that was served holds, also over a restart: it lies
in a file beside the model store. What failed is tried again after pauses that double up to a limit.
"""

import re
import shutil
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Literal, Self, get_args

import httpx
import structlog
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import AuthorizationError, KafkaError, TopicAuthorizationFailedError
from pydantic import TypeAdapter, ValidationError

from detector import metrics
from detector.records import RELEASES, Rollout
from detector.release.artifact import MANIFEST, SIGNATURE, Artifact, load
from detector.release.manifest import ArtifactError
from detector.release.signature import verify_signed
from detector.settings import DetectorSettings
from ingest.durable import folder_aside, write_durably
from ingest.kafka.access import as_refusal, kafka_options
from ingest.settings import IngestSettings

_ROLLOUT: TypeAdapter[Rollout | None] = TypeAdapter(Rollout | None)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ROLLOUT_TIMEOUT_S = 5.0
_FILE_TIMEOUT_S = 30.0


class FetchError(Exception):
    """Deploy did not answer the request. Retryable."""


class TokenRefusedError(FetchError):
    """Deploy does not take this worker's token, and will not before somebody mends that."""


class NotThereError(FetchError):
    """Deploy has no such file, or not yet."""


class NoDigestError(ArtifactError):
    """A release's name is no SHA-256 in hexadecimal digits."""


def ask_rollout(settings: DetectorSettings) -> Rollout | None:
    """The rollout of deploy's ledger; None where it has nothing approved. Raises FetchError."""
    with _client(settings, _ROLLOUT_TIMEOUT_S) as client:
        try:
            reply = client.get("/rollout")
            if reply.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                raise TokenRefusedError(
                    f"{client.base_url} refuses the token of FORGEWATCH_DETECTOR_DEPLOY_TOKEN"
                    f" (HTTP {reply.status_code}): restart this process with today's"
                )
            reply.raise_for_status()
            return _ROLLOUT.validate_json(reply.content)
        except (httpx.HTTPError, ValidationError) as error:
            raise FetchError(f"{client.base_url}/rollout: {error}") from error


def fetch(digest: str, cache: Path, settings: DetectorSettings) -> Artifact:
    """Return the artifact in cache/DIGEST, downloaded first where it is missing or damaged there.

    Raises FetchError when deploy cannot be reached or does not have it, ArtifactError when what it has
    is not what the digest says or not signed by whom the settings trust, and OSError.
    """
    folder = _entry(cache, digest)
    try:
        return verify_signed(folder, digest, settings.trusted_signers)
    except ArtifactError:
        discard(digest, cache)
    with folder_aside(folder) as aside, _client(settings, _FILE_TIMEOUT_S) as client:
        _download(client, digest, MANIFEST, aside)
        # load() refuses a manifest that names other files than an artifact's, before one is used here.
        for name in load(aside).manifest.files:
            _download(client, digest, name, aside)
        if settings.trusted_signers is not None:
            with suppress(NotThereError):  # which the verification that follows names
                _download(client, digest, SIGNATURE, aside)
        verify_signed(aside, digest, settings.trusted_signers)
    return verify_signed(folder, digest, settings.trusted_signers)


def discard(digest: str, cache: Path) -> None:
    """Remove an artifact from the cache, if it is there; nothing else is ever removed."""
    with suppress(FileNotFoundError):
        shutil.rmtree(_entry(cache, digest))


def _entry(cache: Path, digest: str) -> Path:
    # A path as a "digest" would lead out of the cache.
    if not _DIGEST.fullmatch(digest):
        raise NoDigestError(f"{digest!r} is no SHA-256 of 64 hexadecimal digits")
    return cache / digest


def _client(settings: DetectorSettings, timeout_s: float) -> httpx.Client:
    token = settings.deploy_token
    headers = {} if token is None else {"authorization": f"Bearer {token.get_secret_value()}"}
    # trust_env would hand the token to a proxy that the environment names.
    return httpx.Client(base_url=settings.deploy_url, headers=headers, timeout=timeout_s, trust_env=False)


def _download(client: httpx.Client, digest: str, name: str, folder: Path) -> None:
    path = f"/artifacts/{digest}/{name}"
    try:
        with client.stream("GET", path) as reply:
            if reply.status_code == httpx.codes.NOT_FOUND:
                raise NotThereError(f"{client.base_url}{path} is not there")
            reply.raise_for_status()
            with (folder / name).open("xb") as file:
                for chunk in reply.iter_bytes():
                    file.write(chunk)
    except httpx.HTTPError as error:
        raise FetchError(f"{client.base_url}{path}: {error}") from error


log = structlog.get_logger()

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
"""What fails for want of another process, which may come back at any time."""
REFUSED_PAUSE_S = 300.0
"""What was wrong, and will be until somebody mends it: each try costs a download."""


class Pause:
    """The pause before the next try of one thing; due at once as long as nothing failed."""

    def __init__(self) -> None:
        self.failures = 0
        self._until = 0.0

    @property
    def due(self) -> bool:
        """Whether it may be tried now."""
        return time.monotonic() >= self._until

    def on_failure(self, max_s: float, *, long: bool = False) -> None:
        """Wait twice as long as the time before, at most max_s seconds, or just so long."""
        pause_s = max_s if long else min(max_s, FIRST_PAUSE_S * 2.0 ** min(self.failures, 64))
        self.failures += 1
        self._until = time.monotonic() + pause_s

    def rest(self, pause_s: float) -> None:
        """Nothing failed: wait this long, and begin with the shortest pause when something does."""
        self.failures = 0
        self._until = time.monotonic() + pause_s


State = Literal["not_asked", "confirmed", "unconfirmed", "nothing_approved", "unreachable", "refused"]
STATES: tuple[State, ...] = get_args(State)

_ASK_AGAIN_S = 60.0
"""Deploy is asked this often even where the topic has nothing new: a record may be lost with its topic."""


class RolloutClient:
    """The rollout that this worker follows, None before there is one, and whether deploy stands by it."""

    def __init__(self, settings: DetectorSettings) -> None:
        """Read the last served rollout; nothing is asked yet."""
        self.rollout: Rollout | None = None
        self._settings = settings
        self._path = settings.model_store_dir / "rollout.json"
        self.kept = _read(self._path)
        self._pause = Pause()
        self._asked_for: Rollout | None = None
        self._doubted: Rollout | None = None
        self._show("not_asked")

    def due(self, newest: Rollout | None) -> bool:
        """Whether deploy is to be asked now; newest is the topic's last record."""
        return newest != self._asked_for or self._pause.due

    def ask(self) -> Rollout | None:
        """Deploy's answer; blocking, and it changes nothing. Raises FetchError."""
        return ask_rollout(self._settings)

    def on_reply(self, newest: Rollout | None, answer: "Future[Rollout | None]") -> None:
        """Follow deploy's answer, which was asked for when newest was the topic's last record."""
        self._asked_for = newest
        try:
            rollout = answer.result()
        except FetchError as error:
            log.warning("deploy cannot be reached for the release to serve", error=str(error))
            self._show("refused" if isinstance(error, TokenRefusedError) else "unreachable")
        else:
            self.rollout = rollout or self.rollout
            if rollout is None:
                self._show("nothing_approved")
            elif newest is None or newest == rollout or _later(rollout, newest):
                self._show("confirmed")
                return self._pause.rest(_ASK_AGAIN_S)
            else:
                self._show("unconfirmed")
            if newest is not None and newest != self._doubted:
                self._doubted = newest
                metrics.UNCONFIRMED_ROLLOUTS.inc()
                log.error(
                    "the releases topic names a release that deploy does not confirm",
                    topic=newest.model_dump(exclude_none=True),
                    deploy=rollout and rollout.model_dump(exclude_none=True),
                )
        self._pause.on_failure(LONGEST_PAUSE_S)
        self.rollout = self.rollout or self.kept

    def keep(self, rollout: Rollout) -> None:
        """Have this rollout served after a restart, should deploy not answer then. Raises OSError."""
        if rollout != self.kept:
            write_durably(self._path, rollout.model_dump_json().encode())
            self.kept = rollout

    def _show(self, state: State) -> None:
        for name in STATES:
            metrics.ROLLOUT_STATE.labels(name).set(name == state)


def _later(new: Rollout, other: Rollout) -> bool:
    """Whether one is a later word of the same ledger: the topic is only behind."""
    return new.ledger == other.ledger and (new.epoch, new.sequence) > (other.epoch, other.sequence)


def _read(path: Path) -> Rollout | None:
    try:
        return Rollout.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        log.warning("the release served last cannot be read", path=str(path), error=str(error))
        return None


class ReleaseFollower:
    """A reader of the releases topic, from its beginning and without a group: each worker sees all of it.

    Whoever may write to the topic can write anything: what it names is a reason to ask deploy, and no
    more (detector.serving.rollout).
    """

    def __init__(self, settings: IngestSettings) -> None:
        """Assign the topic's only partition; nothing is read yet. Raises KafkaError without a broker."""
        self.newest: Rollout | None = None
        self._options = kafka_options(settings)
        self._consumer = KafkaConsumer(
            **self._options,
            group_id=None,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        partition = TopicPartition(settings.topic(RELEASES), 0)
        self._consumer.assign([partition])
        self._consumer.seek_to_beginning(partition)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def poll(self, timeout_s: float = 0.0) -> Rollout | None:
        """Read new records and return the newest rollout; None where there was none yet.

        A record that is no rollout is logged once and left out. Raises
        ingest.kafka.access.BrokerRefusedError where an ACL is in the way; any other fault is taken to pass.
        """
        try:
            batches = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
            # An assigned topic that may not even be described is waited for in silence.
            if lacking := self._consumer._cluster.unauthorized_topics:
                raise TopicAuthorizationFailedError(lacking)
        except AuthorizationError as error:
            raise as_refusal(error, self._options) from error
        except KafkaError as error:
            log.warning("the releases topic cannot be read now", error=str(error))
            return self.newest
        for record in (record for records in batches.values() for record in records):
            try:
                self.newest = Rollout.model_validate_json(record.value or b"")
            except ValidationError as error:
                (problem, *_) = error.errors(include_input=False, include_url=False)
                about = {"field": ".".join(map(str, problem["loc"])), "error": problem["msg"]}
                log.warning("a record of the releases topic is no rollout", offset=record.offset, **about)
        return self.newest

"""Checks of this host: settings, packages, disk, databases, clock. Each returns its result."""

import os
import shutil
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import httpx
from packaging.requirements import InvalidRequirement, Requirement
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from deploy.environment import SETTINGS
from deploy.releases.signing import NOTICE, last_expiry, said_of
from deploy.settings import DeploySettings
from detector.release.signature import SignersError, SigningKeyError, check_key
from detector.settings import DetectorSettings
from ingest.process.frame import ProcessSettings, WrongSettingError, find_problems
from ingest.process.health import existing
from memory.crops.object_store import ObjectStore, local_folder, require_files
from memory.database import open_engine, read_url
from memory.settings import MemorySettings
from updater.settings import UpdaterSettings

_ROOT = Path(__file__).parents[2]
_CLOCK_TOLERANCE_S = 2.0
# A segment of Kafka's log has as much, and an artifact, its cache and an upload together less.
_MIN_FREE_BYTES = 2**30


class CheckError(Exception):
    """A check failed: the problem and the remedy."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.advice = advice


class NotHereError(Exception):
    """A check has nothing to look at where it runs: why. All may be well."""


DATABASES = tuple(f"FORGEWATCH_{room}_DATABASE_URL" for room in ("DEPLOY", "MEMORY", "UPDATER"))


def settings() -> str:
    """Every package understands its variables."""
    if problems := find_problems((ProcessSettings, *SETTINGS)):
        raise CheckError("; ".join(map(str, problems)), "set these variables right, or unset them")
    return "every FORGEWATCH_ variable is understood"


def dependencies() -> str:
    """The installed packages are those of requirements.lock."""
    lock = _lock()
    if not lock.is_file():
        raise NotHereError("installed without the lock file")
    wrong, compared = [], 0
    for line in lock.read_text().splitlines():
        try:
            pin = Requirement(line.removesuffix("\\").strip())
        except InvalidRequirement:
            continue  # a hash or a comment
        if pin.marker is not None and not pin.marker.evaluate():
            continue
        compared += 1
        try:
            installed = version(pin.name)
        except PackageNotFoundError:
            installed = "nothing"
        if not pin.specifier.contains(installed, prereleases=True):
            wrong.append(f"{pin.name} {installed} instead of {pin.specifier}")
    if wrong:
        raise CheckError(
            "; ".join(wrong[:5]) + (" …" if len(wrong) > 5 else ""), "run `make clean` and `make up`"
        )
    return f"{compared} packages have their pinned versions"


def _lock() -> Path:
    """Which of the two locks the packages are of: for GPUs FAISS is another one."""
    try:
        version("faiss-gpu")
    except PackageNotFoundError:
        return _ROOT / "requirements.lock"
    return _ROOT / "requirements-gpu.lock"


def disk() -> str:
    """There is room where the artifacts lie."""
    lie = local_folder(DeploySettings().artifacts_url)
    if lie is None:
        return "the artifacts lie in an object store"
    folder = existing(lie)
    free = shutil.disk_usage(folder).free
    text = f"{free / 2**30:.1f} GiB free at {folder}"
    if free < _MIN_FREE_BYTES:
        raise CheckError(text, "make room: artifacts, crops and Kafka's log need it")
    return text


def databases() -> str:
    """Every database of the settings opens."""
    set_to = (DeploySettings().database_url, MemorySettings().database_url, UpdaterSettings().database_url)
    urls = _of_this_process(dict(zip(DATABASES, set_to, strict=True)))
    for name, url in urls.items():
        try:
            parsed, _ = read_url(url)
            if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).is_file():
                raise CheckError(f"{name}: there is no {parsed.database}", "start the stack: `forgewatch up`")
            engine = open_engine(urls[name])
            with engine.connect() as connection:
                connection.execute(text("SELECT 1"))
            engine.dispose()
        except (SQLAlchemyError, ImportError) as error:
            raise CheckError(
                f"{name}: {str(error).splitlines()[0]}", "see that the database runs and the URL is right"
            ) from error
    return f"{len(urls)} databases open"


def files() -> str:
    """Crops and artifacts can be read and stored where the settings say."""
    urls = _of_this_process(
        {
            "FORGEWATCH_MEMORY_CROPS_URL": MemorySettings().crops_url,
            "FORGEWATCH_DEPLOY_ARTIFACTS_URL": DeploySettings().artifacts_url,
        }
    )
    for name, url in urls.items():
        try:
            require_files(name, url)
        except WrongSettingError as error:
            raise CheckError(str(error), "set it right, or install the extra `s3`") from error
        if problem := ObjectStore(url).hindrance():
            raise CheckError(
                f"{name}: {problem}",
                "see that the bucket is there and that AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY are those of its server",
            )
    return f"{' and '.join(urls.values())} can be read and stored"


def _of_this_process(urls: dict[str, str]) -> dict[str, str]:
    # A pod has those of its room; without any there is one stack, and all have their defaults.
    return {name: url for name, url in urls.items() if name in os.environ} or urls


def signatures() -> str:
    """Releases are signed by keys that are trusted and count for a while yet, or nobody asked for it."""
    signers, key = DetectorSettings().trusted_signers, UpdaterSettings().signing_key
    try:
        if key is not None:
            check_key(key)
        last = None if signers is None else last_expiry(signers)
    except (SignersError, SigningKeyError) as error:
        raise CheckError(
            str(error), "make a key with its certificate as detector/OPERATIONS.md says"
        ) from error
    if last is not None and last < datetime.now(UTC) + NOTICE:
        raise CheckError(
            f"after {last:%Y-%m-%d} no release is loaded any more: the last trusted key expires",
            "issue its certificate anew, or sign the releases with a new key (`forgewatch release sign`)",
        )
    return said_of(signers)


def clock() -> str:
    """This host's time is the deploy server's."""
    settings = DeploySettings()
    try:
        # Nothing else in the loop says its time without a write.
        answer = httpx.get(f"{settings.url}/healthz", timeout=5, trust_env=False)
        there = parsedate_to_datetime(answer.headers["date"])
    except (httpx.HTTPError, httpx.InvalidURL, KeyError, ValueError) as error:
        raise CheckError(
            f"the deploy server's time is not known: {error}", "bring the deploy server up"
        ) from error
    off = abs((datetime.now(UTC) - there).total_seconds())
    if off > _CLOCK_TOLERANCE_S:
        raise CheckError(
            f"{off:.0f} s off the deploy server's", "let NTP set both clocks: timestamps order the record"
        )
    return "agrees with the deploy server's"

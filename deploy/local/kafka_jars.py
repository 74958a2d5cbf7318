"""The jars of an Apache Kafka broker, fetched by jgo and held to pinned digests.

`kafka.lock` lists every jar that `org.apache.kafka:kafka_2.13:4.1.0` needs at run time, and the
log4j binding of slf4j, without which a broker says nothing of its errors. Each line is a Maven
coordinate and the jar's SHA-256. jgo warns where a checksum is off and leaves half a file behind
where a download is cut; a jar whose digest is not the pinned one is thrown away here.
"""

import fcntl
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests
from jgo.config import GlobalSettings
from jgo.constants import MAVEN_CENTRAL_URL
from jgo.maven import MavenContext

from deploy.local.processes import StackError

_LOCK = Path(__file__).with_name("kafka.lock")
_DOWNLOADS_AT_ONCE = 8


class JarError(StackError):
    """A jar of the broker can be had neither from the cache nor from a Maven repository."""


def kafka_jars(cache: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> list[Path]:
    """The broker's class path; fetches what `cache` lacks (44 MB the first time).

    `progress(done, total)` is called after each jar. Repositories of the user's jgo.conf are asked
    after, or by the name `central` instead of, jgo's own. Raises JarError.
    """
    context = MavenContext(
        repo_cache=cache / "maven",
        remote_repos={"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories},
        timeout=30,
    )
    pins = [line.split() for line in _LOCK.read_text().splitlines()]
    jars = []
    cache.mkdir(parents=True, exist_ok=True)
    # jgo writes a jar in its place, so another process would find half of it there.
    with (cache / "maven.lock").open("ab") as alone, ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
        fcntl.flock(alone, fcntl.LOCK_EX)
        for jar in pool.map(lambda pin: _jar(context, *pin), pins):
            jars.append(jar)
            progress(len(jars), len(pins))
    return jars


def _jar(context: MavenContext, coordinate: str, sha256: str) -> Path:
    group, name, version = coordinate.split(":")
    artifact = context.project(group, name).at_version(version).artifact()
    for _attempt in range(2):
        try:
            path = Path(artifact.resolve())
        except (requests.RequestException, RuntimeError) as error:
            raise JarError(f"{coordinate} could not be fetched: {error}") from error
        if hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
            return path
        path.unlink()
    raise JarError(f"{coordinate} does not have its pinned SHA-256 {sha256}")

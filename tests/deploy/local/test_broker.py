import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from jgo.maven import Artifact

from deploy.local import broker
from deploy.local.broker import JarError


def jar_path(cache: Path, coordinate: str) -> Path:
    group, name, version = coordinate.split(":")
    return cache.joinpath("maven", *group.split("."), name, version, f"{name}-{version}.jar")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise requests.ConnectionError("no network")

    monkeypatch.setattr(requests, "request", refuse)


def pin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    (lock := tmp_path / "kafka.lock").write_text(text)
    monkeypatch.setattr(broker, "_LOCK", lock)


EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.usefixtures("no_network")
def test_a_cached_jar_with_its_pinned_digest_needs_no_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pin(monkeypatch, tmp_path, f"org.example:thing:1.0 {EMPTY_SHA256}\n")
    jar = jar_path(tmp_path, "org.example:thing:1.0")
    jar.parent.mkdir(parents=True)
    jar.touch()
    counted: list[tuple[int, int]] = []
    assert broker.kafka_jars(tmp_path, lambda done, total: counted.append((done, total))) == [jar]
    assert counted == [(1, 1)]


@pytest.mark.usefixtures("no_network")
def test_half_a_jar_in_the_cache_is_thrown_away_and_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pin(monkeypatch, tmp_path, f"org.example:thing:1.0 {EMPTY_SHA256}\n")
    jar = jar_path(tmp_path, "org.example:thing:1.0")
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"half")
    with pytest.raises(JarError, match=r"org\.example:thing:1\.0 could not be fetched: no network"):
        broker.kafka_jars(tmp_path)
    assert not jar.exists()


def test_of_two_that_fetch_into_an_empty_cache_at_once_one_waits_for_the_others_jars(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    halves = [b"jar" * 100, b"more" * 100]
    pin(monkeypatch, tmp_path, f"org.example:thing:1.0 {hashlib.sha256(b''.join(halves)).hexdigest()}\n")
    jar, both, disturbed = (
        jar_path(tmp_path, "org.example:thing:1.0"),
        threading.Barrier(2),
        threading.Event(),
    )
    found_half: list[bool] = []

    def resolve(_self: Artifact) -> Path:
        if jar.exists():
            found_half.append(jar.read_bytes() == halves[0])
            disturbed.set()
        else:
            jar.parent.mkdir(parents=True, exist_ok=True)
            jar.write_bytes(halves[0])
            disturbed.wait(0.5)
            jar.write_bytes(b"".join(halves))
        return jar

    def fetch(_number: int) -> list[Path]:
        both.wait()
        return broker.kafka_jars(tmp_path)

    monkeypatch.setattr(Artifact, "resolve", resolve)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(fetch, range(2))) == [[jar], [jar]]
    assert found_half == [False]


def test_the_lock_names_one_version_of_each_jar_with_a_digest() -> None:
    pins = [line.split() for line in broker._LOCK.read_text().splitlines()]
    assert all(len(pin) == 2 and len(pin[1]) == 64 for pin in pins)
    names = [pin[0].rsplit(":", 1)[0] for pin in pins]
    assert len(names) == len(set(names))
    assert "org.apache.kafka:kafka_2.13:4.1.0" in [pin[0] for pin in pins]
    # A resolver that takes another artifact's bill of materials for Kafka's picks an old client.
    assert {pin[0].rsplit(":", 1)[1] for pin in pins if "kafka" in pin[0]} == {"4.1.0"}

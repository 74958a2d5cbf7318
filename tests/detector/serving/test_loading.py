"""Artifacts over real HTTP into a cache, with records, bytes and environments as an attacker has them."""

import functools
import hashlib
import http.server
import json
import shutil
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import SecretStr

from detector.records import Rollout
from detector.release.artifact import MANIFEST, MODEL, SIGNATURE, load, version_of
from detector.release.manifest import ArtifactError, DamagedArtifactError
from detector.release.signature import SignatureError, sign
from detector.serving import rollout as rollout_module
from detector.serving.loading import Holdings, Loader
from detector.serving.rollout import Serving
from detector.serving.rollout_source import (
    FetchError,
    NoDigestError,
    RolloutClient,
    TokenRefusedError,
    ask_rollout,
    fetch,
)
from detector.serving.torchserve import TorchServe, TorchServeError
from detector.settings import DetectorSettings


class Deploy(http.server.SimpleHTTPRequestHandler):
    """Serves a folder as deploy serves its artifacts, and keeps the headers that came."""

    headers_seen: list[dict[str, str]]

    def do_GET(self):
        self.headers_seen.append(dict(self.headers))
        status = self.headers.get("authorization", "").removeprefix("Bearer refused-")
        if status.isdigit():
            self.send_error(int(status))
        else:
            super().do_GET()

    def log_message(self, *_):
        pass


def serving(folder):
    seen = []
    handler = type("Handler", (Deploy,), {"headers_seen": seen})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, seen


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    (folder / "artifacts").mkdir(parents=True)
    server, _ = serving(folder)
    yield folder, DetectorSettings(deploy_url=f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()


def publish(artifact, folder):
    return Path(shutil.copytree(artifact.folder, folder / "artifacts" / artifact.digest))


def test_an_artifact_is_fetched_whole_and_then_read_from_the_cache(site, untrained_artifact, tmp_path):
    folder, settings = site
    published = publish(untrained_artifact, folder)
    cache = tmp_path / "cache"
    assert fetch(untrained_artifact.digest, cache, settings).manifest == untrained_artifact.manifest
    shutil.rmtree(published)
    assert fetch(untrained_artifact.digest, cache, settings).digest == untrained_artifact.digest


@pytest.mark.parametrize("absolute", [True, False])
def test_a_path_in_place_of_a_digest_removes_nothing(site, tmp_path, absolute):
    cache, precious = tmp_path / "cache", tmp_path / "precious"
    cache.mkdir()
    precious.mkdir()
    (precious / "file").write_text("kept")
    with pytest.raises(NoDigestError):
        fetch(str(precious) if absolute else "../precious", cache, site[1])
    assert (precious / "file").read_text() == "kept"


def test_a_damaged_cache_entry_is_fetched_anew_and_its_neighbours_stay(site, untrained_artifact, tmp_path):
    folder, settings = site
    publish(untrained_artifact, folder)
    cache = tmp_path / "cache"
    first = fetch(untrained_artifact.digest, cache, settings)
    (first.folder / MODEL).write_bytes(b"damaged")
    (cache / "neighbour").mkdir()
    assert fetch(untrained_artifact.digest, cache, settings).digest == untrained_artifact.digest
    assert sorted(path.name for path in cache.iterdir()) == sorted(["neighbour", untrained_artifact.digest])


def test_bytes_that_are_not_the_digests_leave_nothing_in_the_cache(site, untrained_artifact, tmp_path):
    folder, settings = site
    (publish(untrained_artifact, folder) / MODEL).write_bytes(b"forged")
    with pytest.raises(DamagedArtifactError, match=MODEL):
        fetch(untrained_artifact.digest, tmp_path / "cache", settings)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_file_of_another_name_is_refused_before_it_is_fetched(site, untrained_artifact, tmp_path):
    folder, settings = site
    manifest = untrained_artifact.manifest
    files = manifest.files | {"json.py": "0" * 64}
    data = manifest.model_copy(update={"files": files}).model_dump_json().encode()
    digest = hashlib.sha256(data).hexdigest()
    published = Path(shutil.copytree(untrained_artifact.folder, folder / "artifacts" / digest))
    (published / MANIFEST).write_bytes(data)
    (published / "json.py").write_text("raise SystemExit")
    with pytest.raises(ArtifactError, match=r"json\.py"):
        fetch(digest, tmp_path / "cache", settings)


def test_what_deploy_does_not_have_is_a_passing_fault(site, tmp_path):
    with pytest.raises(FetchError):
        fetch("0" * 64, tmp_path / "cache", site[1])
    with pytest.raises(FetchError):
        ask_rollout(site[1])


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_deploy_does_not_take_is_told_apart_from_a_way_that_is_cut(site, status):
    settings = site[1].model_copy(update={"deploy_token": SecretStr(f"refused-{status}")})
    with pytest.raises(TokenRefusedError, match=rf"DEPLOY_TOKEN \(HTTP {status}\): restart"):
        ask_rollout(settings)
    with pytest.raises(FetchError) as error:
        ask_rollout(site[1].model_copy(update={"deploy_token": SecretStr("refused-500")}))
    assert not isinstance(error.value, TokenRefusedError)


def test_no_proxy_of_the_environment_sees_the_token(untrained_artifact, tmp_path, monkeypatch):
    folder = tmp_path / "site"
    publish(untrained_artifact, folder)
    said = {"ledger": "0" * 32, "epoch": 0, "sequence": 3, "stable": untrained_artifact.digest}
    (folder / "rollout").write_text(json.dumps(said))
    server, seen = serving(folder)
    proxy, overheard = serving(tmp_path)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    settings = DetectorSettings(deploy_url=f"http://127.0.0.1:{server.server_port}", deploy_token="secret")
    try:
        rollout = ask_rollout(settings)
        fetch(untrained_artifact.digest, tmp_path / "cache", settings)
    finally:
        for running in (server, proxy):
            running.shutdown()
            running.server_close()
    assert rollout.stable == untrained_artifact.digest
    assert overheard == []
    assert {request["authorization"] for request in seen} == {"Bearer secret"}


A, B = "a" * 64, "b" * 64

HOLD = """
import sys
from pathlib import Path
from detector.serving.loading import Holdings
holdings = Holdings(Path(sys.argv[1]))
holdings.hold([sys.argv[2]])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def neighbour(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), B],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def held(holdings, digests):
    with holdings.hold_alone(digests) as everything:
        return everything


def test_what_another_process_holds_is_seen_until_it_is_killed(tmp_path, neighbour):
    with closing(Holdings(tmp_path)) as holdings:
        assert held(holdings, {A}) == {A, B}
        neighbour.kill()
        neighbour.wait()
        assert held(holdings, {A}) == {A}
        assert len(list((tmp_path / "holdings").glob("*.json"))) == 1


def test_a_worker_holds_the_last_that_it_said(tmp_path):
    with closing(Holdings(tmp_path)) as other:
        with closing(Holdings(tmp_path)) as one:
            one.hold({A, B})
            assert held(other, set()) == {A, B}
            one.hold({B})
            assert held(other, set()) == {B}
        assert held(other, set()) == set()


@pytest.fixture
def signed(untrained_artifact, signer, tmp_path):
    artifact = load(Path(shutil.copytree(untrained_artifact.folder, tmp_path / "signed")))
    sign(artifact, signer.key)
    return artifact


def trusting(settings, certificate):
    return settings.model_copy(update={"trusted_signers": certificate})


def test_a_signed_release_is_fetched_with_its_signature_and_then_cached(site, signed, signer, tmp_path):
    folder, settings = site
    settings, cache = trusting(settings, signer.certificate), tmp_path / "cache"
    published = publish(signed, folder)
    assert fetch(signed.digest, cache, settings).digest == signed.digest
    shutil.rmtree(published)
    assert fetch(signed.digest, cache, settings).digest == signed.digest


def test_a_release_that_was_signed_again_is_fetched_anew_where_the_first_signer_is_no_longer_trusted(
    site, signed, signer, make_signer, tmp_path
):
    folder, settings = site
    cache, later = tmp_path / "cache", make_signer("later")
    published = publish(signed, folder)
    fetch(signed.digest, cache, trusting(settings, signer.certificate))
    with pytest.raises(SignatureError, match="Key mismatch"):
        fetch(signed.digest, cache, trusting(settings, later.certificate))
    sign(load(published), later.key)
    assert fetch(signed.digest, cache, trusting(settings, later.certificate)).digest == signed.digest


@pytest.mark.slow
@pytest.mark.bar("P1")
@pytest.mark.parametrize("how", ["not signed", "signed by another", "flipped", "flipped in the cache"])
def test_what_no_trusted_key_signed_ends_at_the_fetch(site, signed, signer, make_signer, tmp_path, bar, how):
    bar.count(1)
    folder, settings = site
    settings = settings.model_copy(
        update={"model_store_dir": tmp_path, "torchserve_management_url": "http://127.0.0.1:1"}
    )
    careful = trusting(settings, signer.certificate)
    published = publish(signed, folder)
    with closing(Holdings(tmp_path)) as holdings, TorchServe(settings) as torchserve:
        loader = Loader(careful, torchserve, holdings, RolloutClient(settings))
        if how == "not signed":
            (published / SIGNATURE).unlink()
        elif how == "signed by another":
            sign(load(published), make_signer().key)
        else:
            if how == "flipped in the cache":
                fetch(signed.digest, loader.cache, careful)
            flipped = bytearray((published / SIGNATURE).read_bytes())
            flipped[len(flipped) // 2] ^= 1
            for path in (*published.glob(SIGNATURE), *loader.cache.glob(f"*/{SIGNATURE}")):
                path.write_bytes(flipped)
        with pytest.raises(SignatureError):
            loader.bring(signed.digest, ())
        assert list(tmp_path.glob("*.mar")) == []
        assert list(loader.cache.iterdir()) == []
        # The control: where no signer is named it goes on to TorchServe, which nobody runs here.
        with pytest.raises(TorchServeError):
            Loader(settings, torchserve, holdings, RolloutClient(settings)).bring(signed.digest, ())
        assert (loader.cache / signed.digest).is_dir()


# However fast releases follow one another, TorchServe has few of them loaded.
#
# The loader here only keeps what it was told; `tests/system/rollout` has the real one on a real TorchServe.
class Loads:
    """Brings whatever is asked for, and keeps what is to be loaded in the end."""

    def __init__(self, cache):
        self.cache = cache
        self.loaded = frozenset()

    def bring(self, digest, held):
        manifest = SimpleNamespace(classes=("real", "gan"))
        return SimpleNamespace(digest=digest, version=version_of(digest), manifest=manifest)

    def reconcile(self, end):
        self.loaded = end.loaded


def swapped(digests, folder, in_use=()):
    """What stays loaded after one release after another went live, all within the rollback window."""
    loads = Loads(folder)
    wanted = SimpleNamespace(rollout=None, kept=None, due=lambda newest: False)
    loader = loads
    follower = SimpleNamespace(poll=lambda: None)
    with Serving(DetectorSettings(model_store_dir=folder), loader, follower, wanted) as serving:
        serving.in_use = in_use
        for sequence, digest in enumerate(digests):
            wanted.rollout = Rollout(ledger="0" * 32, epoch=0, sequence=sequence, stable=digest)
            serving.tick()
            while serving._step is not None:
                serving._step[0].result()
                serving.tick()
            assert serving.route is not None
            assert serving.route.stable.digest == digest
    return loads.loaded


DIGESTS = [f"{number:02x}" * 32 for number in range(20)]


def test_of_twenty_swaps_within_the_window_the_last_three_releases_stay_loaded(tmp_path):
    assert swapped(DIGESTS, tmp_path) == set(DIGESTS[-3:])


def test_what_scores_still_is_not_unloaded_for_it(tmp_path):
    assert swapped(DIGESTS, tmp_path, in_use=DIGESTS[:1]) == {DIGESTS[0], *DIGESTS[-3:]}


def test_without_the_bound_all_of_them_stay(tmp_path, monkeypatch):
    """The negative control."""
    monkeypatch.setattr(rollout_module, "_MOST_LEAVING", 100)
    assert swapped(DIGESTS, tmp_path) == set(DIGESTS)

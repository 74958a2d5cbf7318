"""Faults, restarts and forgeries: the last good release scores until the wanted one can. Real TorchServe."""

import errno
import time
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import pytest
import skimage
from prometheus_client import REGISTRY

from detector.records import Rollout
from detector.release.artifact import MODEL, MODEL_CARD, PROBE, SIGNATURE, load, seal
from detector.release.signature import sign
from detector.release.tensors import read_probe, write_probe
from detector.serving import loading
from detector.serving.loading import Holdings
from detector.serving.torchserve import StartError, TorchServe

pytestmark = pytest.mark.system


def unserved_since(slot):
    name = "forgewatch_detector_unserved_since_timestamp_seconds"
    return REGISTRY.get_sample_value(name, {"slot": slot}) or 0.0


def test_after_a_restart_without_deploy_the_release_before_is_served_again(deploy, releases):
    first, second, _ = releases
    deploy.publish(first)
    with deploy.worker(deploy.say(first)) as running:
        running.until(deploy.kept.exists)
    with deploy.worker(deploy.say(second), away=True) as running:
        running.until_scoring(first)


def test_a_restarted_worker_scores_with_the_release_before_until_it_can_have_the_new_one(deploy, releases):
    first, second, _ = releases
    deploy.publish(first)
    with deploy.worker(deploy.say(first)) as running:
        running.until(deploy.kept.exists)
    before = time.time()
    with deploy.worker(deploy.say(second)) as running:
        running.until_scoring(first)
        assert before <= unserved_since("stable") <= time.time()
        deploy.publish(second)
        running.until_scoring(second)
        assert unserved_since("stable") == 0


def fail_once(monkeypatch, where, name, error):
    real, failed = getattr(where, name), []

    def failing(*arguments):
        if len(failed) < 2:
            failed.append(arguments)
            raise error
        return real(*arguments)

    monkeypatch.setattr(where, name, failing)
    return failed


@pytest.mark.bar("S3")
@pytest.mark.parametrize("fault", ["full disk", "failed start"])
def test_a_passing_fault_at_a_swap_only_delays_it(deploy, releases, monkeypatch, fault):
    first, second, _ = releases
    deploy.publish(first)
    deploy.publish(second)
    with deploy.worker(deploy.say(first)) as running:
        running.until_scoring(first)
        if fault == "full disk":
            failed = fail_once(monkeypatch, loading, "pack", OSError(errno.ENOSPC, "no space left on device"))
        else:
            failed = fail_once(monkeypatch, TorchServe, "register", StartError("Failed to start workers"))
        running.read(deploy.say(second))
        running.until(lambda: len(failed) == 2)
        assert running.scoring() == {first.digest}
        running.until_scoring(second)


def test_damaged_bytes_are_fetched_anew_until_they_are_right(deploy, releases):
    first, second, _ = releases
    deploy.publish(first)
    (published,) = deploy.publish(second)
    right = (published / MODEL).read_bytes()
    (published / MODEL).write_bytes(right[:-1])
    refused = {"outcome": "refused"}
    name = "forgewatch_detector_swaps_total"
    before = REGISTRY.get_sample_value(name, refused) or 0.0
    with deploy.worker(deploy.say(first)) as running:
        running.until_scoring(first)
        running.read(deploy.say(second))
        running.until(lambda: (REGISTRY.get_sample_value(name, refused) or 0.0) >= before + 2)
        assert running.scoring() == {first.digest}
        (published / MODEL).write_bytes(right)
        running.until_scoring(second)


def test_a_release_that_scores_otherwise_than_its_probe_never_scores_and_is_taken_out(deploy, releases):
    first, second, _ = releases
    asked, expected = read_probe(second.folder / PROBE, second.manifest.contract)
    write_probe(second.folder / PROBE, asked, {**expected, "energy": expected["energy"] + 1})
    wrong = seal(second.folder, second.manifest)
    deploy.publish(first)
    deploy.publish(wrong)
    with deploy.worker(deploy.say(first)) as running:
        running.until_scoring(first)
        running.read(deploy.say(wrong))
        running.until(lambda: wrong.version in deploy.there()[0])
        running.until(lambda: wrong.version not in deploy.there()[0])
        assert running.scoring() == {first.digest}
        assert unserved_since("stable") > 0


def test_a_forged_record_on_the_topic_is_never_served(deploy, releases):
    first, second, _ = releases
    deploy.publish(first)
    deploy.publish(second)
    name = "forgewatch_detector_unconfirmed_rollouts_total"
    with deploy.worker(deploy.say(first)) as running:
        running.until_scoring(first)
        before = REGISTRY.get_sample_value(name) or 0.0
        running.read(Rollout(ledger="0" * 32, epoch=0, sequence=10**9, stable=second.digest))
        running.until(lambda: REGISTRY.get_sample_value(name) == before + 1)
        over = time.monotonic() + 1
        running.until(lambda: time.monotonic() > over)
        assert running.scoring() == {first.digest}
        assert second.version not in deploy.there()[0]


def test_stable_and_canary_score_side_by_side_and_what_no_slot_names_is_removed(deploy, releases):
    first, second, third = releases
    for artifact in releases:
        deploy.publish(artifact)
    with deploy.worker(deploy.say(first)) as running:
        running.until_scoring(first)
        running.read(deploy.say(first, second, 0.25))
        running.until_scoring(first, second)
        assert running.serving.route is not None
        assert running.serving.route.canary_share == 0.25
        running.read(deploy.say(second, third, 0.5))
        running.until_scoring(second, third)
        both = {second.version, third.version}
        running.until(lambda: deploy.there() == (both, both, {second.digest, third.digest}))
        photograph = Path(skimage.__file__).parent / "data" / "rocket.jpg"
        url = f"{deploy.settings.torchserve_url}/predictions/forgewatch"
        answer = httpx.post(
            url, content=photograph.read_bytes(), headers={"content-type": "image/jpeg"}, timeout=60
        )
        assert answer.json()["release"] == second.digest
        with TorchServe(deploy.settings) as client:
            request = {"crops": np.zeros((1, 64, 64, 3), np.uint8), "pooling": np.ones((1, 1), np.float32)}
            assert client.predict(third, request)["logits"].shape == (1, 3)


def test_no_version_is_unloaded_while_a_batch_is_on_its_way_to_it(deploy, releases):
    first, second, _ = releases
    for artifact in releases:
        deploy.publish(artifact)
    with deploy.worker(deploy.say(first)) as running:
        running.until_scoring(first)
        running.serving.in_use = {first.digest}
        running.read(deploy.say(second))
        running.until_scoring(second)
        over = time.monotonic() + 5 * deploy.settings.rollback_window_s
        running.until(lambda: time.monotonic() > over)
        assert deploy.there()[0] == {first.version, second.version}
        running.serving.in_use = ()
        running.until(lambda: deploy.there()[0] == {second.version})


def test_what_an_earlier_process_left_is_removed_but_not_what_a_neighbour_holds(deploy, releases):
    left, held, wanted = releases
    for artifact in releases:
        deploy.publish(artifact)
        with deploy.worker(deploy.say(artifact)) as running:
            running.serving.in_use = {each.digest for each in releases}  # nothing is removed by this one
            running.until_scoring(artifact)
    mine = deploy.settings.model_store_dir / "somebody-elses.mar"
    mine.write_bytes(b"")
    with closing(Holdings(deploy.settings.model_store_dir)) as neighbour:
        neighbour.hold([held.digest])
        with deploy.worker(deploy.say(wanted)) as running:
            versions = {held.version, wanted.version}
            running.until(lambda: deploy.there()[0] == versions)
            running.until(lambda: left.digest not in deploy.there()[2])
            assert deploy.there()[1] == versions | {"somebody-els"}
    assert mine.exists()


# A release that no trusted key signed never scores, on a real TorchServe; the one before goes on.
@pytest.mark.bar("P1")
@pytest.mark.parametrize("how", ["not signed", "signed by another", "changed and sealed again"])
def test_the_signed_release_scores_until_the_next_is_signed(deploy, releases, signer, make_signer, bar, how):
    bar.count(1)
    first, second, _ = releases
    old, new = deploy.publish(first, second)
    for each in (old, new):
        sign(load(each), signer.key)
    second = spoilt(new, how, make_signer)
    deploy.settings = deploy.settings.model_copy(update={"trusted_signers": signer.certificate})
    before = refused()
    with deploy.worker(deploy.say(first)) as running:
        running.until_scoring(first)
        running.read(deploy.say(second))
        running.until(lambda: refused() >= before + 2)
        assert running.scoring() == {first.digest}
        versions, archives, _ = deploy.there()
        assert second.version not in versions | archives
        sign(second, signer.key)
        running.until_scoring(second)


@pytest.mark.bar("P1")
def test_the_control_where_nobody_is_trusted_by_name_an_unsigned_release_scores(deploy, releases, bar):
    bar.count(1)
    first, second, _ = releases
    _, new = deploy.publish(first, second)
    second = spoilt(new, "changed and sealed again", None)
    with deploy.worker(deploy.say(second)) as running:
        running.until_scoring(second)


def refused():
    return REGISTRY.get_sample_value("forgewatch_detector_swaps_total", {"outcome": "refused"}) or 0.0


def spoilt(folder, how, make_signer):
    """Take the good signature from what is published, and return what it is now."""
    match how:
        case "not signed":
            (folder / SIGNATURE).unlink()
        case "signed by another":
            assert make_signer is not None
            sign(load(folder), make_signer().key)
        case _:
            signature = folder / SIGNATURE
            kept = signature.read_bytes() if signature.is_file() else b""
            (folder / MODEL_CARD).write_text("Better than it is.\n")
            digest = seal(folder, load(folder).manifest).digest
            signature.write_bytes(kept)
            folder = folder.rename(folder.with_name(digest))
    return load(folder)

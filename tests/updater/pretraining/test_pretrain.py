import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from detector.release.architecture import Architecture
from updater.pretraining import pretrain as module
from updater.pretraining.batches import Batches
from updater.pretraining.media import UnlabelledMedia
from updater.pretraining.network import Pretraining, save_pretrained
from updater.pretraining.pretrain import pretrain
from updater.training.weights import put, read_weights
from updater.worker import run_once

CPU = torch.device("cpu")
ARCHITECTURE = Architecture(crop_px=64)


@pytest.fixture
def media(labelled):
    items = labelled({"real": 24})
    sources = tuple("phone" if number < 6 else "camera" for number in range(24))
    return UnlabelledMedia(items.crops, np.repeat(np.arange(24), 2), sources, (), 0)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """An autoencoder that was trained for a moment."""
    train = module.train_autoencoder
    monkeypatch.setattr(module, "_AUTOENCODERS", 1)
    monkeypatch.setattr(module, "_TEST_BATCHES", 4)
    monkeypatch.setattr(module, "train_autoencoder", lambda *given, **more: train(*given, **more, steps=2))


@pytest.fixture
def clock(monkeypatch):
    """A clock by which each batch takes a second."""
    seconds = itertools.count()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))


def run(media, state, batches, **more):
    given = {"minutes": batches / 60, "seed": 3, "device": CPU, "state": state} | more
    return pretrain(media, ARCHITECTURE, **given)


def test_a_batch_is_reals_and_the_same_by_each_draw_from_all_sources_alike(media):
    batches = Batches(media, np.arange(24), (), 0, CPU)
    images, classes = batches.draw(7)
    assert images.shape == (48, 3, 64, 64)
    assert list(np.bincount(classes.numpy())) == [16, 8, 8, 8, 8]
    assert torch.equal(images, batches.draw(7).images)
    assert not torch.equal(images, batches.draw(8).images)
    by_others = (images[:8] - images[8:16]).abs().mean()
    assert all((images[:8] - images[k : k + 8]).abs().mean() < by_others / 2 for k in range(16, 48, 8))
    assert batches._chance[:6].sum() == pytest.approx(0.5)


def test_it_learns_to_tell_fresh_generators_from_reals_that_it_did_not_see(media, tmp_path, clock):
    untrained = run(media, tmp_path / "a", 0.5)
    trained = run(media, tmp_path / "b", 30)
    assert trained.batches == 30
    assert trained.auc > max(0.7, untrained.auc + 0.1)


def test_what_was_interrupted_ends_as_what_was_not(media, tmp_path, clock, monkeypatch):
    whole = run(media, tmp_path / "whole", 6)
    loss, calls = Pretraining.loss, []

    def interrupted(self, batch):
        calls.append(batch)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return loss(self, batch)

    monkeypatch.setattr(Pretraining, "loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(media, tmp_path / "state", 6)
    gone_on = run(media, tmp_path / "state", 6)
    assert (gone_on.batches, len(calls)) == (6, 4 + 3)
    ours, theirs = gone_on.network.state_dict(), whole.network.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_state_of_other_media_or_another_seed_is_not_gone_on_from(media, tmp_path, clock):
    run(media, tmp_path / "state", 3)
    assert run(media, tmp_path / "state", 3).batches == 3
    changed = UnlabelledMedia(media.crops[::-1].copy(), media.owners, media.sources, (), 0)
    with safe_open(tmp_path / "state", "pt") as file:
        before = file.metadata()["identity"]
    run(changed, tmp_path / "state", 3)
    with safe_open(tmp_path / "state", "pt") as file:
        assert file.metadata()["identity"] != before


def test_the_file_is_what_a_network_of_any_classes_begins_with(media, tmp_path, clock):
    done = run(media, tmp_path / "state", 2)
    save_pretrained(tmp_path / "weights.safetensors", done.network)
    weights = read_weights(tmp_path / "weights.safetensors")
    network = module.Network(ARCHITECTURE, 5)
    put(network, weights, tuple("abcde"))
    for name, value in done.network.state_dict().items():
        begun = network.state_dict()[name]
        assert name.startswith(("head.", "pseudo_head.")) or torch.equal(value, begun)


def test_a_checkpoint_becomes_release_0(
    media, tmp_path, head_recipes, make_settings, remember, memory_settings, deploy_server, clock
):
    file = tmp_path / "weights.safetensors"
    save_pretrained(file, run(media, tmp_path / "state", 3).network)
    remember("real", 60)
    remember("blocky", 50)
    with deploy_server() as (url, parts):
        settings = make_settings(url, backbone="none", checkpoint=file)
        done = run_once(settings, memory_settings)
        assert (done.state, done.error) == ("proposed", None)
        folder = parts.artifacts.folder(done.candidate)
        evaluation = json.loads((folder / "evaluation.json").read_bytes())
    assert evaluation["begun_with"].startswith("weights.safetensors (SHA-256 ")

"""Training an expert: what is held back is never trained on, and an interruption costs nothing."""

import numpy as np
import pytest
from safetensors.torch import load_file

from updater.experts import train
from updater.experts.build import Layout, expert_network
from updater.experts.check import ExpertError
from updater.experts.train import ExpertRun, augment, families_in, split_families, train_expert

SHORT = ExpertRun("test_efficientnet", 8, batch=4, side_px=64, hold=("b",))


@pytest.fixture(autouse=True)
def measured_often(monkeypatch):
    monkeypatch.setattr(train, "MEASURED_EVERY", 4)


@pytest.mark.slow
def test_blocky_forgeries_of_a_family_that_was_held_back_are_told(folders, tmp_path):
    out = tmp_path / "expert.safetensors"
    long = ExpertRun("test_efficientnet", 120, batch=16, side_px=64, hold=("b",))
    assert train_expert(folders("a", "b", count=16), out, long).aucs["b"] > 0.9
    network, weights = expert_network(Layout(out), 64)
    assert network.head.out_features == 1
    assert weights.tensors.keys() == load_file(out).keys()


def test_an_interrupted_training_ends_with_the_same_network(folders, tmp_path):
    folder, whole, resumed = folders("a", "b"), tmp_path / "whole.safetensors", tmp_path / "r.safetensors"
    straight = train_expert(folder, whole, SHORT)

    def stop(stage, done, total):
        if stage.startswith("train") and done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_expert(folder, resumed, SHORT, progress=stop)
    assert resumed.with_suffix(".training").is_file()
    steps = []
    again = train_expert(folder, resumed, SHORT, progress=lambda stage, done, total: steps.append(done))
    assert again == straight
    assert min(steps) == 4
    assert not resumed.with_suffix(".training").exists()
    assert all((value == load_file(whole)[name]).all() for name, value in load_file(resumed).items())


def test_what_is_held_back_is_never_drawn(folders, tmp_path, monkeypatch):
    seen, pixels_of = set(), train.pixels_of
    monkeypatch.setattr(train, "pixels_of", lambda path: seen.add(path.parts[-3]) or pixels_of(path))
    train_expert(folders("a", "b", "c"), tmp_path / "expert.safetensors", SHORT)
    assert seen == {"a", "c"}


def test_a_fifth_of_the_families_is_held_back_and_whole(folders):
    trained, held = split_families(families_in(folders(*"abcdefghij", count=8)), (), seed=0)
    assert len(held) == 2
    assert not {family.name for family in trained} & {family.name for family in held}


@pytest.mark.parametrize(
    ("names", "hold", "said"),
    [
        ("a", (), "has the family a alone"),
        ("ab", ("x",), "--hold x is no family here: choose of a, b"),
        ("ab", ("a", "b"), "all of a, b are held back"),
    ],
)
def test_folders_that_cannot_be_trained_on_are_refused_in_one_line(folders, names, hold, said):
    with pytest.raises(ExpertError, match=said):
        split_families(families_in(folders(*names)), hold, 0)


def test_a_file_that_is_no_picture_is_named(folders, tmp_path):
    folder = folders("a", "b")
    for path in (folder / "a").rglob("*.png"):
        path.write_bytes(b"no picture")
    with pytest.raises(ExpertError, match=r"png gives no picture"):
        train_expert(folder, tmp_path / "expert.safetensors", SHORT)


@pytest.mark.parametrize("shape", [(64, 64), (200, 90), (30, 20)])
def test_a_crop_is_of_the_size_that_is_asked_for(shape):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (*shape, 3), np.uint8)
    for _ in range(20):
        assert augment(rng, pixels, 64).shape == (64, 64, 3)

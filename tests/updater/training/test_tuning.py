"""A model on pictures trained further: as much of it as is asked, the same if interrupted or not."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from detector.model.backbone import shown_to
from updater.training import tuning
from updater.training.frozen import frozen_branch, frozen_rows, picture_of
from updater.training.picture_vote import fit_vote
from updater.training.tuning import Tuning, TuningError, check, tune
from updater.training.weights import read_weights

CPU = torch.device("cpu")
SIDE = 32
TARGETS = [0, 1] * 8
MODELS = ["test_vit", "test_efficientnet"]
SOON = Tuning("whole", epochs=2, rate=1e-3, batch=4)


@pytest.fixture
def make(published):
    def make(name):
        weights = read_weights(published(name))
        return frozen_branch(picture_of(name, SIDE, shown_to(name), weights), weights)

    return make


@pytest.fixture
def items(labelled):
    """Fakes have every fourth column a little lighter, which random weights hardly tell of."""

    def items(seed=0, each=8):
        found = labelled({"real": each, "gan/real": each}, seed)
        rng = np.random.default_rng(seed)
        pictures = 128 + rng.normal(0, 30, (2 * each, 1, 1, 3)) + rng.normal(0, 10, (2 * each, SIDE, SIDE, 3))
        pictures[1::2, :, ::4] += 20
        return replace(found, pictures=pictures.clip(0, 255).astype(np.uint8))

    return items


def tuned(branch, items, how=SOON, **others):
    before = {name: value.clone() for name, value in branch.backbone.state_dict().items()}
    tune(branch, items, TARGETS, how, **({"seed": 0, "device": CPU} | others))
    after = branch.backbone.state_dict()
    assert list(after) == list(before)
    assert not branch.training
    assert not any(one.requires_grad for one in branch.parameters())
    return {name for name in before if not torch.equal(before[name], after[name])}, before


@pytest.mark.parametrize(
    ("name", "last"),
    [("test_vit", ("blocks.5.", "norm.")), ("test_efficientnet", ("blocks.4.", "conv_head", "bn2"))],
)
def test_as_much_is_trained_as_is_asked_and_no_statistics(name, last, make, items):
    branch = make(name)
    parameters = {one for one, _ in branch.backbone.named_parameters()}
    changed, _ = tuned(branch, items())
    assert changed <= parameters
    # A key's bias changes nothing, and so is not learnt.
    assert len(changed) > 0.9 * len(parameters)
    of_last, _ = tuned(make(name), items(), replace(SOON, what="last-1"))
    assert of_last
    assert all(one.startswith(last) for one in of_last)


@pytest.mark.parametrize("name", MODELS)
def test_an_interrupted_tuning_ends_as_an_unbroken_one(name, make, items, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "_SAVE_EVERY", 3)
    unbroken, broken, other = (make(name) for _ in range(3))
    torch.manual_seed(3)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    tuned(unbroken, items())
    assert torch.equal(torch.rand(1), drawn)

    def stop(done, total):
        if done == 5:
            raise KeyboardInterrupt

    file = tmp_path / "checkpoint.safetensors"
    with pytest.raises(KeyboardInterrupt):
        tune(broken, items(), TARGETS, SOON, seed=0, device=CPU, checkpoint=file, progress=stop)
    again, told = make(name), []
    tuned(again, items(), checkpoint=file, progress=lambda *at: told.append(at))
    assert told == [(number, 8) for number in range(4, 9)]
    assert same(again, unbroken)
    # Of another seed nothing of it is gone on from.
    told.clear()
    tuned(other, items(), seed=1, checkpoint=file, progress=lambda *at: told.append(at))
    assert len(told) == 8
    assert not same(other, unbroken)


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


def test_what_is_tuned_tells_apart_what_the_weights_did_not(make, items):
    def told_rightly(branch):
        rows = [frozen_rows(branch, items(seed, 32).pictures, CPU) for seed in (0, 1, 2)]
        weight, bias = fit_vote(rows[0], ["real", "gan"] * 32, ("real", "gan"))
        said = (torch.from_numpy(np.concatenate(rows[1:])) @ weight.T + bias).argmax(1).numpy()
        return np.mean(said == np.array([0, 1] * 64))

    branch, some = make("test_efficientnet"), items(0, 32)
    assert told_rightly(branch) < 0.8
    how = Tuning("whole", epochs=40, rate=1e-3, batch=16)
    tune(branch, some, [0, 1] * 32, how, seed=0, device=CPU)
    assert told_rightly(branch) > 0.9


@pytest.mark.parametrize("name", MODELS)
def test_adapters_are_of_low_rank_and_become_part_of_the_weights(name, make, items, tmp_path, monkeypatch):
    pytest.importorskip("peft", reason="peft is not installed: pip install -e '.[adapters]'")
    monkeypatch.setattr(tuning, "_SAVE_EVERY", 3)
    how, file = replace(SOON, what="adapters"), tmp_path / "checkpoint.safetensors"
    branch = make(name)
    changed, before = tuned(branch, items(), how)
    assert changed
    after = branch.backbone.state_dict()
    for one in changed:
        added = (after[one] - before[one]).flatten(1)
        scale = float(added.norm())
        assert scale > 0
        assert int(torch.linalg.matrix_rank(added / scale, atol=1e-4)) <= 8

    def stop(done, total):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(make(name), items(), TARGETS, how, seed=0, device=CPU, checkpoint=file, progress=stop)
    again = make(name)
    tuned(again, items(), how, checkpoint=file)
    assert same(again, branch)


def test_what_cannot_be_tuned_so_is_one_line_and_stays_as_it_was(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    branch, plain = make("test_vit"), make("test_vit")
    for what, told in (
        ("last-7", "test_vit has 6 blocks: tune at most so many, or it whole"),
        ("adapters", r"adapters need peft: pip install -e '\.\[adapters\]'"),
    ):
        with pytest.raises(TuningError, match=told):
            check(branch, replace(SOON, what=what))
    check(branch, replace(SOON, what="last-6"))
    assert same(branch, plain)
    assert not any(one.requires_grad for one in branch.parameters())


def test_rate_and_batch_are_chosen_by_what_is_tuned():
    assert Tuning.of("none", 1, 0.1, 64) is None
    assert Tuning.of("whole", 3, None, 64) == Tuning("whole", 3, 1e-4, 16)
    assert Tuning.of("adapters", 3, None, 4) == Tuning("adapters", 3, 1e-3, 4)
    assert Tuning.of("last-2", 3, 0.5, 16).rate == 0.5

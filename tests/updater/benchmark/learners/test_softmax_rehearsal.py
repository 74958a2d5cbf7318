import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import nn

from detector.model.network import CosineHead
from detector.release.manifest import Architecture
from updater.benchmark.learners import lucir
from updater.data.training_data import LabelledCrops
from updater.training import two_stages
from updater.training.crop_rows import backbone_rows, classify_items, draw_crops, forensic_rows, pool_rows
from updater.training.losses import distillation
from updater.training.step import FIRST, UPDATE, Options, Step, TrainedModel

SMALL = Architecture(backbone="lcnet_035", crop_px=64, width=16)
CPU = torch.device("cpu")
QUICK = replace(FIRST, backbone_steps=6, balanced_steps=30, batch=12)
CLASSES = ("real", "blurred", "striped")


def make(counts, seed=0):
    rng = np.random.default_rng(seed)
    families = [family for family, count in counts.items() for _ in range(count)]
    crops = []
    for family in families:
        for _ in range(2):
            crop = ndimage.gaussian_filter(rng.normal(0, 60, (64, 64, 3)), (4, 4, 0)) * 4 + 120
            crop += rng.normal(0, 4, crop.shape)
            if family == "blurred":
                crop = ndimage.uniform_filter(crop, (3, 3, 1))
            elif family == "striped":
                crop += 4 * (np.arange(64) % 3 == 0)[:, None, None]
            elif family == "posterised":
                crop = np.rint(crop / 16) * 16
            crops.append(np.clip(crop, 0, 255).astype(np.uint8))
    return LabelledCrops(
        ids=tuple(f"{family}-{seed}-{i}" for i, family in enumerate(families)),
        families=tuple(families),
        sources=("camera",) * len(families),
        groups=tuple(f"{family}-{seed}-{i}" for i, family in enumerate(families)),
        crops=np.stack(crops),
        starts=(2 * np.arange(len(families) + 1)).astype(np.int64),
    )


TRAIN = make({"real": 20, "blurred": 8, "striped": 8})


def learn(train, classes, architecture, previous=None, **of_step):
    step = Step(train, classes, architecture, previous and TrainedModel(*previous), **of_step)
    return two_stages.learn(step).network


def predictions(network, classes, items):
    rows, features = backbone_rows(network, items.crops, CPU), forensic_rows(network, items.crops, CPU)
    return [classes[i] for i in classify_items(network, rows, features, items.starts).logits.argmax(1)]


def accuracy(network, classes, items):
    guessed = predictions(network, classes, items)
    return float(np.mean([a == b for a, b in zip(guessed, items.families, strict=True)]))


def same(first, second):
    other = second.state_dict()
    return all(torch.equal(value, other[name]) for name, value in first.state_dict().items())


def quick(**changes):
    wanted = {"seed": 3, "recipe": QUICK, "without": frozenset({"smoothing"})}
    return learn(TRAIN, CLASSES, SMALL, **(wanted | changes))


@pytest.fixture(scope="module")
def first():
    return quick()


def test_it_names_fresh_items_of_families_that_it_learnt(first):
    assert accuracy(first, CLASSES, make({"real": 10, "blurred": 10, "striped": 10}, seed=1)) > 0.8


def test_the_same_seed_gives_the_same_network_and_leaves_the_global_state(first):
    before = torch.get_rng_state()
    assert same(first, quick())
    assert torch.equal(before, torch.get_rng_state())
    assert not same(first, quick(seed=4))


class StopError(Exception):
    pass


@pytest.mark.parametrize(("stage", "at"), [("backbone", 4), ("balanced", 12)])
def test_an_interrupted_run_goes_on_to_the_same_network(first, tmp_path, stage, at, monkeypatch):
    monkeypatch.setattr("updater.training.fit.SAVE_EVERY", 3)
    seen = []

    def stop(now, done, total):
        if (now, done) == (stage, at):
            raise StopError

    file = tmp_path / "run" / "checkpoint.safetensors"
    with pytest.raises(StopError):
        quick(checkpoint=file, progress=stop)
    assert file.exists()
    resumed = quick(checkpoint=file, progress=lambda now, done, total: seen.append((now, done)))
    assert (stage, 1) not in seen, "what was done was done again"
    assert same(first, resumed)
    assert not file.exists(), "a finished run leaves no checkpoint"


@pytest.mark.parametrize("damage", ["other seed", "truncated"])
def test_a_checkpoint_that_does_not_fit_is_not_gone_on_from(first, tmp_path, damage, monkeypatch):
    monkeypatch.setattr("updater.training.fit.SAVE_EVERY", 2)
    file = tmp_path / "checkpoint.safetensors"

    def stop(now, done, total):
        if (now, done) == ("backbone", 5):
            raise StopError

    with pytest.raises(StopError):
        quick(checkpoint=file, progress=stop, seed=9 if damage == "other seed" else 3)
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-100])
    assert same(first, quick(checkpoint=file))


def test_an_update_names_the_new_family_and_still_names_the_old_ones(first):
    classes = (*CLASSES, "posterised")
    memory = make({"real": 12, "blurred": 6, "striped": 6, "posterised": 8}, seed=5)
    recipe = replace(UPDATE, backbone_steps=4, balanced_steps=40, batch=12)
    updated = learn(memory, classes, SMALL, previous=(first, CLASSES), seed=1, recipe=recipe)
    fresh = make({"real": 8, "blurred": 8, "striped": 8, "posterised": 8}, seed=6)
    assert accuracy(updated, classes, fresh) > 0.8


def test_an_update_starts_as_the_previous_network(first):
    classes = (*CLASSES, "posterised")
    memory = make({"real": 4, "posterised": 4, "striped": 4, "blurred": 4}, seed=5)
    recipe = replace(UPDATE, backbone_steps=0, balanced_steps=0)
    updated = learn(memory, classes, SMALL, previous=(first, CLASSES), seed=1, recipe=recipe)
    with torch.no_grad():
        crops = torch.from_numpy(memory.crops[:4]).permute(0, 3, 1, 2).float()
        old, new = (n(crops, torch.eye(4)) for n in (first, updated))
    assert torch.allclose(new.logits[:, :3], old.logits, atol=1e-5)
    assert torch.allclose(new.pseudo_logit, old.pseudo_logit, atol=1e-5)


def test_a_network_without_forensic_features_learns_too():
    plain = SMALL.model_copy(update={"forensic": False})
    network = learn(TRAIN, CLASSES, plain, seed=0, recipe=replace(QUICK, backbone_steps=2, balanced_steps=2))
    assert len(predictions(network, CLASSES, TRAIN)) == len(TRAIN)


@pytest.mark.parametrize(
    ("classes", "reason"),
    [
        (("real", "blurred", "striped", "blurred"), "must be distinct"),
        (("real", "blurred"), "are not the classes"),
        (("real", "blurred", "striped", "absent"), "are not the classes"),
    ],
)
def test_classes_that_do_not_fit_the_items_are_refused(classes, reason):
    with pytest.raises(ValueError, match=reason):
        learn(TRAIN, classes, SMALL, seed=0)


def test_another_architecture_than_the_previous_ones_is_refused(first):
    wider = SMALL.model_copy(update={"width": 32})
    with pytest.raises(ValueError, match="keeps the previous network's architecture"):
        learn(TRAIN, CLASSES, wider, previous=(first, CLASSES), seed=0)


def test_distillation_is_the_divergence_from_the_teacher():
    teacher, student = torch.tensor([[0.0, 2 * math.log(3)]]), torch.tensor([[0.0, 0.0]])
    expected = 4 * (0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5))
    assert distillation(student, teacher, 2.0).item() == pytest.approx(expected, rel=1e-5)
    assert distillation(teacher, teacher, 2.0).item() == pytest.approx(0, abs=1e-6)


def test_distillation_moves_every_old_logit():
    student = torch.zeros(2, 3, requires_grad=True)
    torch.autograd.backward(distillation(student, torch.tensor([[3.0, 1, 0], [0, 2, 5.0]])))
    assert student.grad is not None
    assert (student.grad != 0).all()


def test_pools_are_the_means_of_their_crops():
    rows = torch.arange(10.0).reshape(5, 2)
    assert torch.equal(pool_rows(rows, np.array([0, 2, 5])), torch.tensor([[1.0, 2.0], [6.0, 7.0]]))


def test_drawn_crops_are_one_of_each_items_and_all_of_them_come():
    rng, starts = np.random.default_rng(0), np.array([0, 1, 5, 7])
    drawn = np.array([draw_crops(rng, np.array([1, 0, 2]), starts) for _ in range(100)])
    assert [set(rows) for rows in drawn.T] == [{1, 2, 3, 4}, {0}, {5, 6}]


TINY = Architecture(backbone="lcnet_035", crop_px=64, width=8)
RECIPE = replace(FIRST, backbone_steps=2, balanced_steps=4, batch=8)


def test_the_more_old_classes_the_more_it_weighs():
    assert lucir.adaptive_weight(5, 2, 4) == pytest.approx(5)
    assert lucir.adaptive_weight(5, 8, 10) == pytest.approx(10)
    assert lucir.adaptive_weight(5, 9, 9) == pytest.approx(15)


def test_less_forget_is_one_less_the_cosine():
    now = torch.tensor([[3.0, 4.0], [0.0, 2.0]], requires_grad=True)
    value = lucir.less_forget(now, torch.tensor([[4.0, 3.0], [0.0, 0.5]]))
    assert value.item() == pytest.approx((1 - 24 / 25) / 2, rel=1e-4)
    torch.autograd.backward(value)
    assert (now.grad[0] != 0).all()
    assert now.grad[1].abs().max() < 1e-6, "a longer embedding of the same direction is no forgetting"


def test_an_exemplar_is_held_a_margin_above_the_two_hardest_new_classes():
    scores = torch.tensor([[0.9, 0.1, 0.7, 0.2, 0.6], [0.1, 0.2, 0.3, 0.9, 0.4]], requires_grad=True)
    value = lucir.margin_ranking(scores, torch.tensor([0, 4]), old=2, margin=0.5)
    # Only the first is of an old class; of its rivals 0.7 and 0.6 are the hardest.
    assert value.item() == pytest.approx(((0.5 - 0.9 + 0.7) + (0.5 - 0.9 + 0.6)) / 2, rel=1e-4)
    torch.autograd.backward(value)
    assert scores.grad.tolist() == [[-1, 0, 0.5, 0, 0.5], [0, 0, 0, 0, 0]]


def test_ranking_is_the_mean_over_exemplars_and_nothing_without_them():
    scores = torch.tensor([[0.5, 0.6], [0.5, 1.0]])
    assert lucir.margin_ranking(scores, torch.tensor([0, 0]), 1, 0.2).item() == pytest.approx(0.5)
    assert lucir.margin_ranking(scores, torch.tensor([1, 1]), 1, 0.2).item() == 0


@pytest.mark.parametrize("head", [nn.Linear(4, 3), CosineHead(4, 3)])
def test_fixed_weights_neither_move_nor_decay(head):
    before = {name: value.clone() for name, value in head.state_dict().items()}
    lucir.fix_old(head, 2)
    optimiser = torch.optim.AdamW(head.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        optimiser.zero_grad()
        torch.autograd.backward(head(torch.ones(1, 4)).square().sum())
        optimiser.step()
    lucir.release(head)
    after = head.state_dict()
    assert after.keys() == before.keys()
    assert torch.equal(after["weight"][:2], before["weight"][:2])
    assert not torch.equal(after["weight"][2], before["weight"][2])
    if "bias" in after:
        assert torch.equal(after["bias"][:2], before["bias"][:2])


@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_an_update_keeps_the_weights_of_old_classes(head, labelled):
    architecture = TINY.model_copy(update={"head": head})
    options, items = Options(exposure="none"), labelled({"real": 4, "blocky": 4})
    first = Step(items, ("real", "blocky"), architecture, options=options, recipe=RECIPE)
    learnt = lucir.learn(first)
    items = labelled({"real": 2, "blocky": 2, "striped": 4}, seed=1)
    after = lucir.learn(replace(first, train=items, classes=("real", "blocky", "striped"), previous=learnt))
    assert after.network.architecture == architecture
    old, new = learnt.network.head.weight, after.network.head.weight
    assert torch.equal(old, new[:2])
    assert not any("parametrizations" in name for name in after.network.state_dict())
    assert math.isfinite(new.sum().item())

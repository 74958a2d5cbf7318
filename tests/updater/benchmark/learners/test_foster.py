import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from detector.model.network import Network
from detector.release.manifest import Architecture
from updater.benchmark.learners import foster
from updater.benchmark.learners.foster import Boosted, Joint
from updater.training.crop_rows import backbone_rows, classify_items, forensic_rows
from updater.training.loop import Batch, training_set
from updater.training.step import FIRST, Options, Step

TINY = Architecture(backbone="lcnet_035", crop_px=64, width=8)
RECIPE = replace(FIRST, backbone_steps=2, balanced_steps=3, batch=8, pseudo_share=0.25)
OLD = ("a/real", "a/blocky")
CLASSES = (*OLD, "b/real", "b/striped")


def test_rare_classes_have_the_larger_weight_and_the_mean_is_one():
    weight = foster.class_weights(torch.tensor([0] * 1 + [1] * 2 + [2] * 3), 2, beta=0.5)
    # E(1), E(2), E(3) = 1, 1.5, 1.75
    raw = torch.tensor([1, 1 / 1.5, 1 / 1.75])
    assert torch.allclose(weight, raw / raw.mean())
    assert foster.class_weights(torch.tensor([0, 0]), 2, foster.BOOSTING_BETA).isfinite().all(), (
        "a class without an item"
    )


def test_without_pseudo_forgeries_the_weights_are_those_of_pycil():
    targets = torch.arange(6).repeat_interleave(20), torch.tensor([6, 7]).repeat_interleave(100)
    weight = foster.class_weights(torch.cat(targets), 8, beta=0.96)
    assert weight.numpy().round(3).tolist() == pytest.approx([1.121] * 6 + [0.636] * 2 + [1])


def test_balanced_distillation_by_hand():
    teacher = torch.tensor([[math.log(4.0), 0.0, 0.0]])
    student = torch.tensor([[0.0, 0.0, math.log(2.0)]], requires_grad=True)
    # At T = 1: softmax 4:1:1 by weights 1:2:1 is 4:2:1, over 7; the student says 1:1:2, over 4.
    wanted, says = [4 / 7, 2 / 7, 1 / 7], [1 / 4, 1 / 4, 1 / 2]
    by_hand = sum(p * math.log(p / q) for p, q in zip(wanted, says, strict=True))
    value = foster.balanced_distillation(student, teacher, torch.tensor([1.0, 2.0, 1.0]), temperature=1.0)
    assert value.item() == pytest.approx(by_hand, rel=1e-5)
    torch.autograd.backward(value)
    assert student.grad[0].tolist() == pytest.approx(
        [q - p for p, q in zip(wanted, says, strict=True)], rel=1e-4
    )


def test_boosting_and_compression_have_the_published_weights(labelled, monkeypatch):
    asked = []

    def class_weights(targets, classes, beta):
        asked.append(beta)
        return made(targets, classes, beta)

    made = foster.class_weights
    monkeypatch.setattr(foster, "class_weights", class_weights)
    bare, recipe = TINY.model_copy(update={"backbone": "none"}), replace(RECIPE, balanced_steps=1)
    first = foster.learn(Step(labelled(dict.fromkeys(OLD, 2)), OLD, bare, recipe=recipe))
    foster.learn(Step(labelled(dict.fromkeys(CLASSES, 2)), CLASSES, bare, first, recipe=recipe))
    assert asked == [0.96, 0.97]


def test_joint_logits_are_one_linear_layer_on_both_embeddings():
    old, new = nn.Linear(3, 2), nn.Linear(3, 4)
    embedding = torch.randn(5, 6)
    block = torch.cat([F.pad(old.weight, (0, 0, 0, 2)), new.weight], 1)
    wanted = embedding @ block.T + F.pad(old.bias, (0, 2)) + new.bias
    assert torch.allclose(Joint(old, new)(embedding), wanted, atol=1e-6)


@pytest.fixture
def old():
    torch.manual_seed(0)
    return Network(TINY, 2).eval()


def test_a_boosted_network_says_the_old_logits_and_trains_only_the_new_half(old, labelled):
    before = {name: value.clone() for name, value in old.state_dict().items()}
    boosted = Boosted(old, 4).train()
    crops = torch.from_numpy(labelled({"a/real": 2}).crops).permute(0, 3, 1, 2).float()
    output = boosted(crops, torch.eye(4))
    with torch.no_grad():
        assert torch.allclose(
            boosted.head.old(output.embedding.chunk(2, 1)[0]), old(crops, torch.eye(4)).logits, atol=1e-5
        )
        own = boosted.head.new(boosted.drop(output.embedding[:, 16:]))
    assert output.embedding.shape == (4, 32)
    assert (
        own.shape == output.logits.shape == boosted.auxiliary(output.embedding.chunk(2, 1)[1]).shape == (4, 4)
    )
    torch.autograd.backward(output.logits.sum() + output.pseudo_logit.sum())
    reached = {name for name, value in boosted.named_parameters() if value.grad is not None}
    assert {"head.new.weight", "pseudo_head.new.weight", "project.0.weight"} <= reached
    assert any(name.startswith("backbone.new.") for name in reached)
    assert not any(".old." in name or name.startswith("between.") for name in reached)
    assert all(torch.equal(value, before[name]) for name, value in old.state_dict().items())
    assert all(value.grad is None and value.requires_grad for value in old.parameters())


def test_boosting_is_the_sum_of_its_three_losses_and_reaches_every_logit(old, labelled):
    step = Step(
        labelled({"a/real": 1, "a/blocky": 1, "b/real": 2, "b/striped": 2}),
        CLASSES,
        TINY,
        previous=foster.TrainedModel(old, OLD),
        options=Options(exposure="none", distillation=0.5),
        recipe=replace(RECIPE, label_smoothing=0.0),
    )
    data, boosted = training_set(step, old), Boosted(old, 4).eval()
    weight = torch.tensor([1.6, 1.6, 0.6, 0.6, 0.6])
    embedding = torch.randn(3, 32)
    target = torch.tensor([0, 2, 3])
    logits = boosted.head(embedding).detach().requires_grad_()
    output = foster.NetworkOutput(logits, torch.zeros(3), embedding, torch.zeros(3, 0))
    value = foster.boosting_loss(step, data, boosted, weight)(Batch(output, target, target, target))

    def nll(scores):
        return -torch.stack([scores[i].softmax(0)[t].log() for i, t in enumerate(target)]).mean()

    teacher = (boosted.head.old(embedding[:, :16]) / 2).softmax(1)
    divergence = (teacher * (teacher.log() - (logits[:, :2] / 2).log_softmax(1))).sum(1).mean()
    by_hand = nll(logits / weight[:4]) + nll(boosted.auxiliary(embedding[:, 16:])) + 0.5 * divergence
    assert value.item() == pytest.approx(by_hand.item(), rel=1e-5)
    torch.autograd.backward(value)
    assert (logits.grad != 0).all()


@pytest.mark.parametrize("backbone", [TINY.backbone, "none"])
def test_what_comes_out_is_one_plain_network_after_boosting_and_compression(backbone, labelled):
    tiny, train = TINY.model_copy(update={"backbone": backbone}), labelled({"a/real": 6, "a/blocky": 6})
    first = foster.learn(Step(train, OLD, tiny, recipe=RECIPE, seed=1))
    step = Step(labelled(dict.fromkeys(CLASSES, 4), seed=1), CLASSES, tiny, first, recipe=RECIPE, seed=2)
    stages = []
    second = foster.learn(replace(step, progress=lambda stage, done, total: stages.append(stage)))
    assert type(second.network) is Network
    both = ["balanced"] if backbone == "none" else ["backbone", "balanced"]
    wanted = [*(f"boosting, {stage}" for stage in both), *both]
    assert [one for one in dict.fromkeys(stages) if one.endswith(("backbone", "balanced"))] == wanted


def test_the_new_family_is_learnt_and_the_old_one_kept(labelled):
    bare = TINY.model_copy(update={"backbone": "none", "width": 32})
    recipe = replace(FIRST, balanced_steps=300, batch=32)
    first = foster.learn(Step(labelled(dict.fromkeys(OLD, 30)), OLD, bare, recipe=recipe, seed=1))
    counts = {"a/real": 16, "a/blocky": 16, "b/real": 30, "b/striped": 30}
    learnt = foster.learn(Step(labelled(counts, seed=1), CLASSES, bare, first, recipe=recipe, seed=2))
    fresh = labelled({"a/blocky": 15, "b/striped": 15}, seed=2)
    crops, cpu = fresh.crops, torch.device("cpu")
    rows, features = backbone_rows(learnt.network, crops, cpu), forensic_rows(learnt.network, crops, cpu)
    said = classify_items(learnt.network, rows, features, fresh.starts).logits.argmax(1)
    assert (said[:15] == 1).float().mean() > 0.8
    assert (said[15:] == 3).float().mean() > 0.8


class StopError(Exception):
    pass


@pytest.fixture(scope="module")
def update(labelled):
    """A second step, and the weights that it gives."""
    first = foster.learn(Step(labelled({"a/real": 4, "a/blocky": 4}), OLD, TINY, recipe=RECIPE, seed=1))
    step = Step(labelled(dict.fromkeys(CLASSES, 3), seed=1), CLASSES, TINY, first, recipe=RECIPE, seed=2)
    return step, foster.learn(step).network.state_dict()


@pytest.mark.parametrize("stage", ["boosting, backbone", "boosting, balanced", "backbone"])
def test_an_interrupted_boosting_goes_on_and_leaves_no_file(stage, update, tmp_path, monkeypatch):
    monkeypatch.setattr("updater.training.fit.SAVE_EVERY", 1)
    step, wanted = update

    def stop(now, done, total):
        if (now, done) == (stage, 2):
            raise StopError

    file = tmp_path / "checkpoint.safetensors"
    with pytest.raises(StopError):
        foster.learn(replace(step, checkpoint=file, progress=stop))
    assert list(tmp_path.iterdir())
    found = foster.learn(replace(step, checkpoint=file)).network.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in wanted.items())
    assert not list(tmp_path.iterdir())

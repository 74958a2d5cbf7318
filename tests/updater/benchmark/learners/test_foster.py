import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from detector.model.network import Network
from detector.release.manifest import Architecture
from updater.benchmark.learners import foster, methods, nscil
from updater.benchmark.learners.foster import Boosted, Joint
from updater.training.crop_rows import as_images, backbone_rows, classify_items, forensic_rows
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
    weight = torch.tensor([1.0, 2.0, 1.0])
    wanted, says = [4 / 7, 2 / 7, 1 / 7], [1 / 4, 1 / 4, 1 / 2]
    by_hand = sum(p * math.log(p / q) for p, q in zip(wanted, says, strict=True))
    value = foster.balanced_distillation(student, teacher, weight, temperature=1.0)
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
        assert torch.allclose(boosted.old_logits(output), old(crops, torch.eye(4)).logits, atol=1e-5)
        own = boosted.head.new(boosted.drop(output.embedding[:, 16:]))
    assert output.embedding.shape == (4, 32)
    assert own.shape == output.logits.shape == boosted.auxiliary_logits(output).shape == (4, 4)
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
    batch = Batch(output, target, target, target)
    value = foster.boosting_loss(step, data, boosted, weight)(batch)

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


PROJECTED = replace(FIRST, backbone_steps=6, balanced_steps=6, batch=8)


def said(network, items):
    with torch.no_grad():
        return network(as_images(items.crops, torch.device("cpu")), torch.eye(len(items.crops))).logits


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(5, 3),
        nn.Linear(5, 3, bias=False),
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.Conv2d(4, 6, 1, bias=False),
        nn.Conv2d(4, 4, 3, padding=1, groups=4),
        nn.Conv2d(4, 8, (3, 1), dilation=(2, 1), groups=2, bias=False),
        nscil.Conv2dSame(4, 6, 3, stride=2),
    ],
    ids=str,
)
def test_a_layer_is_its_weights_times_its_inputs(layer):
    given = torch.randn(2, 5) if isinstance(layer, nn.Linear) else torch.randn(2, 4, 9, 8)
    seen = nscil.inputs(layer, given)
    groups = len(seen)
    rows = layer.weight.reshape(groups, layer.weight.shape[0] // groups, -1)
    if layer.bias is not None:
        rows = torch.cat([rows, layer.bias.reshape(groups, -1, 1)], 2)
    made = seen @ rows.mT
    wanted = layer(given)
    if wanted.ndim == 4:
        wanted = wanted.permute(0, 2, 3, 1).flatten(0, 2)
    assert torch.allclose(made.permute(1, 0, 2).flatten(1), wanted, atol=1e-5)


def test_the_null_space_holds_what_inputs_lack():
    covariance = torch.diag(torch.tensor([4.0, 0.01, 0.05, 0.2]))[None]
    # a = 10: at most ten times the smallest, 0.01.
    assert torch.allclose(nscil.projection(covariance, 10)[0], torch.diag(torch.tensor([0.0, 1, 1, 0])))
    assert torch.allclose(nscil.projection(covariance, 1)[0], torch.diag(torch.tensor([0.0, 1, 0, 0])))


def test_inputs_of_less_than_full_rank_leave_exactly_their_complement():
    inputs = torch.randn(40, 3) @ torch.randn(3, 7)
    onto = nscil.projection((inputs.T @ inputs / 40)[None])[0]
    assert torch.allclose(onto, torch.eye(7) - torch.linalg.pinv(inputs) @ inputs, atol=1e-4)


def test_covariances_of_two_steps_are_that_of_all_inputs():
    first, second = torch.randn(30, 4), torch.randn(10, 4)
    parts = [{"layer": ((one.T @ one / len(one))[None], float(len(one)))} for one in (first, second)]
    both = torch.cat([first, second])
    mean, count = nscil.merge_covariances(*parts)["layer"]
    assert count == 40
    assert torch.allclose(mean[0], both.T @ both / 40, atol=1e-6)


def test_a_projected_update_changes_new_outputs_and_no_old_ones():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    old, new = torch.randn(2, 3, 3, 3), torch.randn(4, 3, 3, 3)
    with torch.no_grad():
        before, on_new, conv = network(old), network(new), network[0]
        seen = {"0": nscil.inputs(conv, old), "3": nscil.inputs(network[3], network[:3](old))}
    projections = {name: nscil.projection(x.mT @ x / x.shape[1]) for name, x in seen.items()}
    optimiser = torch.optim.AdamW(network.parameters(), lr=0.05, weight_decay=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        torch.autograd.backward(network(new).square().sum())
        nscil.projected_update(network, optimiser, projections)
    with torch.no_grad():
        assert torch.allclose(network(old), before, atol=1e-4)
        assert network(new).square().sum() < 0.9 * on_new.square().sum()
    moved = torch.optim.AdamW(network.parameters(), lr=0.05)
    torch.autograd.backward(network(new).square().sum())
    moved.step()
    with torch.no_grad():
        assert not torch.allclose(network(old), before, atol=1e-2), "the same step unprojected changes them"


@pytest.fixture(scope="module", params=["linear", "cosine"])
def learnt(request, labelled):
    """The old items, the network after them, and the update of the one that follows."""
    learn, architecture = nscil.learn, TINY.model_copy(update={"head": request.param})
    items = labelled({"a/real": 4, "a/blocky": 4})
    options = Options(exposure="none")
    first = learn(Step(items, OLD, architecture, options=options, recipe=PROJECTED, seed=1))
    new = labelled({"a/real": 2, "b/real": 6, "b/striped": 6}, seed=2)
    update = Step(new, CLASSES, architecture, first, options, PROJECTED, seed=3)
    return items, first, update, learn(update)


def test_an_update_leaves_the_old_items_logits_where_fine_tuning_does_not(learnt):
    items, first, update, second = learnt
    before = said(first.network, items)
    moved = (said(second.network, items)[:, :2] - before).abs().max()
    unheld = (said(methods.fine_tune(update).network, items)[:, :2] - before).abs().max()
    assert moved < 0.2 * unheld


def test_what_a_layer_changes_is_bounded_on_old_inputs_by_the_null_space(learnt):
    _, first, _, second = learnt
    changed = 0
    for name, layer in nscil.layers(first.network).items():
        if name == "head":
            continue
        covariance, after = first.kept[f"covariance.{name}"], second.network.get_submodule(name)
        steps = []
        for was, now in zip(layer.parameters(), after.parameters(), strict=True):
            grown = torch.zeros_like(now)
            grown[: len(was)] = was.detach()
            steps.append((now.detach() - grown).reshape(len(covariance), len(now) // len(covariance), -1))
        step = torch.cat(steps, 2).double()
        values = torch.linalg.eigvalsh(covariance.double())
        least = torch.maximum(values[:, 0], 1e-6 * values[:, -1])
        on_old = torch.einsum("gof,gfh,goh->g", step, covariance.double(), step)
        assert (on_old <= nscil.SINGULAR_RATIO * least * step.square().sum((1, 2)) * 1.01 + 1e-9).all(), name
        changed += int(step.abs().max() > 0)
    assert changed > 5


def test_the_heads_new_rows_are_free_and_its_old_ones_stay(learnt):
    items, first, _, second = learnt
    assert torch.equal(second.network.head.weight[:2], first.network.head.weight)
    assert not any("parametrizations" in name for name in second.network.state_dict())
    assert said(second.network, items)[:, 2:].abs().max() > 1e-3


def test_where_no_row_is_new_the_head_is_projected(labelled):
    options = Options(exposure="none", scheme="bc")
    recipe = replace(PROJECTED, backbone_steps=0, balanced_steps=3)
    bare = TINY.model_copy(update={"backbone": "none"})
    first = nscil.learn(Step(labelled(dict.fromkeys(OLD, 3)), OLD, bare, options=options, recipe=recipe))
    new = labelled({"b/real": 3, "b/striped": 3}, seed=2)
    second = nscil.learn(Step(new, CLASSES, bare, first, options, recipe, seed=3))
    step = torch.cat(
        [
            second.network.head.weight - first.network.head.weight,
            (second.network.head.bias - first.network.head.bias)[:, None],
        ],
        1,
    )
    onto = nscil.projection(first.kept["covariance.head"])[0]
    assert step.abs().max() > 0
    assert torch.allclose(step @ onto, step, atol=1e-5)


def test_what_cannot_be_projected_stays(learnt):
    _, first, _, second = learnt
    projected = {f"{name}." for name in nscil.layers(first.network)}
    after = second.network.state_dict()
    for name, value in first.network.state_dict().items():
        if not name.startswith((*projected, "head.")) and not name.endswith("num_batches_tracked"):
            assert torch.equal(value, after[name]), name
    assert all(parameter.requires_grad for parameter in second.network.parameters())


def test_covariances_are_kept_over_all_steps_without_items(learnt):
    items, first, _, second = learnt
    assert first.kept["inputs.project.0"] == len(items.crops)
    assert second.kept["inputs.project.0"] == len(items.crops) + 24, "the new items' crops alone are added"

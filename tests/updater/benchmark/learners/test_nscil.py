from dataclasses import replace

import pytest
import torch
from torch import nn

from detector.release.manifest import Architecture
from updater.benchmark.learners import methods, nscil
from updater.training.crop_rows import as_images
from updater.training.step import FIRST, Options, Step

TINY = Architecture(backbone="lcnet_035", crop_px=64, width=8)
OLD = ("a/real", "a/blocky")
CLASSES = (*OLD, "b/real", "b/striped")
RECIPE = replace(FIRST, backbone_steps=6, balanced_steps=6, batch=8)


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
    first = learn(Step(items, OLD, architecture, options=options, recipe=RECIPE, seed=1))
    new = labelled({"a/real": 2, "b/real": 6, "b/striped": 6}, seed=2)
    update = Step(new, CLASSES, architecture, first, options, RECIPE, seed=3)
    return items, first, update, learn(update)


def test_an_update_leaves_the_old_items_logits_where_fine_tuning_does_not(learnt):
    items, first, update, second = learnt
    before = said(first.network, items)
    moved = (said(second.network, items)[:, :2] - before).abs().max()
    assert moved < 0.2 * (said(methods.fine_tune(update).network, items)[:, :2] - before).abs().max()


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
    recipe = replace(RECIPE, backbone_steps=0, balanced_steps=3)
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

import math
from dataclasses import replace

import pytest
import torch

from detector.model.network import Network
from detector.release.manifest import Architecture
from updater.benchmark.learners import dytox
from updater.benchmark.learners.task_tokens import (
    PatchTokens,
    TaskAttention,
    TaskHeads,
    TaskTokens,
    grow_network,
)
from updater.training.step import FIRST, Options, Step, TrainedModel

TINY = Architecture(backbone="lcnet_035", crop_px=64, width=8)
RECIPE = replace(FIRST, backbone_steps=3, balanced_steps=3, batch=8, pseudo_share=0.25)
OLD = ("a/real", "a/blocky")
CLASSES = (*OLD, "b/real", "b/striped")


def test_task_attention_by_hand():
    torch.manual_seed(0)
    block, width, heads = TaskAttention(8), 8, 4
    tokens, patches = torch.randn(2, width), torch.randn(3, 5, width)
    answers = block(tokens, patches)
    for task in range(2):
        token = tokens[task].expand(3, 1, width)
        z = block.before(torch.cat([token, patches], 1))
        q, k, v = (
            (part.weight @ z.mT).mT.reshape(3, 6, heads, 2) for part in (block.query, block.key, block.value)
        )
        scores = torch.einsum("mhd,mphd->mhp", q[:, 0], k) / math.sqrt(width / heads)
        share = scores.exp() / scores.exp().sum(2, keepdim=True)
        read = torch.einsum("mhp,mphd->mhd", share, v).reshape(3, width)
        asked = token[:, 0] + read @ block.out.weight.T + block.out.bias
        assert torch.allclose(answers[:, task], asked + block.mlp(block.between(asked)), atol=1e-5)


def test_no_task_sees_anothers_token():
    block, tokens, patches = TaskAttention(8), torch.randn(3, 8), torch.randn(2, 4, 8)
    alone = block(tokens[:2], patches)
    assert torch.allclose(block(tokens, patches)[:, :2], alone, atol=1e-5)


@pytest.mark.parametrize(("tasks", "count"), [([(0, 2), (2, 5)], 5), ([(0, 2), (0, 2)], 2)])
def test_the_classifiers_as_one_matrix_say_the_same(tasks, count):
    heads = TaskHeads(4, 3, tasks)
    embedding = torch.randn(6, 11)
    wanted = torch.zeros(6, count)
    for number, (first, end) in enumerate(tasks):
        part = torch.cat([embedding[:, 4 * number : 4 * number + 4], embedding[:, 8:]], 1)
        wanted[:, first:end] += heads.parts[number](part)
    assert torch.allclose(heads(embedding), wanted, atol=1e-5)
    torch.autograd.backward(heads(embedding).square().sum())
    assert all((parameter.grad != 0).all() for parameter in heads.parameters())


def test_tokens_are_the_positions_of_the_last_map():
    class Map(torch.nn.Module):
        def forward_features(self, images):
            return images

    images = torch.randn(2, 3, 2, 2)
    rows = PatchTokens(Map(), 3)(images).reshape(2, 4, 3)
    assert torch.equal(rows[:, 1], images[:, :, 0, 1])
    assert torch.equal(PatchTokens(Map(), 3)(images.flatten(2).mT).reshape(2, 4, 3), rows)


@pytest.mark.parametrize("forensic", [True, False])
def test_growing_leaves_the_old_logits_as_they_were(forensic):
    architecture = TINY.model_copy(update={"forensic": forensic})
    old = TaskTokens(architecture, [(0, 2)]).eval()
    new = grow_network(old, [(0, 2), (2, 5)]).eval()
    crops = torch.rand(3, 3, 64, 64) * 255
    with torch.no_grad():
        before, after = (network(crops, torch.eye(3)) for network in (old, new))
    assert after.logits.shape == (3, 5)
    assert torch.allclose(after.logits[:, :2], before.logits, atol=1e-5)
    assert torch.allclose(after.pseudo_logit, before.pseudo_logit, atol=1e-5)
    assert after.embedding.shape[1] == before.embedding.shape[1] + 8


def test_binary_entropy_by_hand_reaches_every_logit():
    logits = torch.tensor([[0.0, math.log(3)], [math.log(3), 0.0]], requires_grad=True)
    value = dytox.binary_entropy(logits, torch.tensor([1, 1]))
    # sigmoid of log 3 is 3/4: of the four logits two are right or wrong by it, two say a half.
    by_hand = -(2 * math.log(1 / 2) + math.log(3 / 4) + math.log(1 / 4)) / 4
    assert value.item() == pytest.approx(by_hand, rel=1e-5)
    torch.autograd.backward(value)
    assert logits.grad.flatten().tolist() == pytest.approx([1 / 8, -1 / 16, 3 / 16, -1 / 8], rel=1e-4)


def test_the_old_networks_word_weighs_as_the_mean_over_items_and_old_classes():
    # Two items, two old classes of three: the teacher says 1/4 and 3/4, the student a half each and the same.
    teacher = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)]])
    logits = torch.tensor([[0.0, 0.0, 9.0], [0.0, math.log(3), -9.0]])
    by_hand = (math.log((1 / 4) / (1 / 2)) / 4 + 3 * math.log((3 / 4) / (1 / 2)) / 4) / 4
    assert dytox.mean_divergence(logits, teacher).item() == pytest.approx(by_hand, rel=1e-5)


def test_the_divergence_tells_new_classes_from_one_another_and_from_all_that_is_past(labelled):
    previous = TrainedModel(TaskTokens(TINY, [(0, 2)]), OLD)
    step = Step(labelled({"a/blocky": 1, "b/striped": 2, "b/real": 1}), CLASSES, TINY, previous)
    labels = dytox.past_or_new(step, 6)
    assert labels.tolist() == [0, 2, 2, 1, -100, -100]
    network = dytox.start(step)
    embedding = torch.randn(6, network.embedding_size, requires_grad=True)
    value = dytox.divergence(network, embedding, labels)
    scores = network.divergence(embedding[:4, 8:16])
    wanted = torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, 0, 1], [0, 1, 0]])
    each = wanted * scores.sigmoid().log() + (1 - wanted) * (1 - scores.sigmoid()).log()
    by_hand = -each.mean()
    assert value.item() == pytest.approx(by_hand.item(), rel=1e-5)
    torch.autograd.backward(value)
    assert (embedding.grad[:4, 8:16] != 0).any(1).all(), "the newest task's part"
    assert (embedding.grad[:, :8] == 0).all()
    assert (embedding.grad[4:] == 0).all(), "pseudo-forgeries have no class"
    assert dytox.divergence(network, embedding[4:], labels[4:]).item() == 0


@pytest.mark.parametrize("scheme", ["mc", "bc"])
def test_an_update_adds_a_token_and_keeps_the_old_one(scheme, labelled):
    options = Options(scheme=scheme)
    first = dytox.learn(Step(labelled(dict.fromkeys(OLD, 4)), OLD, TINY, options=options, recipe=RECIPE))
    train = labelled(dict.fromkeys(CLASSES, 3), seed=1)
    on_crops = replace(RECIPE, balanced_steps=0)
    second = dytox.learn(Step(train, CLASSES, TINY, first, options, on_crops, seed=1))
    assert all(same(old, first.network, second.network) for old in ("tokens.0", "norms.0", "head.parts.0"))
    assert not same("attention.out", first.network, second.network)
    assert not same("backbone", first.network, second.network)
    assert second.network.head.tasks == (((0, 2), (0, 2)) if scheme == "bc" else ((0, 2), (2, 4)))
    assert second.network.divergence is None
    known = dytox.learn(
        Step(train, CLASSES, TINY, second, options, replace(RECIPE, backbone_steps=0), seed=2)
    )
    assert len(known.network.tokens) == 2, "a step without new classes brings no token"


def same(prefix, one, other):
    there = other.state_dict()
    named = {name: value for name, value in one.state_dict().items() if name.startswith(prefix)}
    assert named
    return all(torch.equal(value, there[name]) for name, value in named.items())


def test_the_balanced_stage_frees_what_the_earlier_tasks_have_and_keeps_the_backbone(labelled, monkeypatch):
    first = dytox.learn(Step(labelled(dict.fromkeys(OLD, 4)), OLD, TINY, recipe=RECIPE))
    train = labelled(dict.fromkeys(CLASSES, 3), seed=1)
    recipe = replace(RECIPE, backbone_steps=0)
    second = dytox.learn(Step(train, CLASSES, TINY, first, recipe=recipe, seed=1))
    assert same("backbone", first.network, second.network)
    assert not any(
        same(old, first.network, second.network) for old in ("tokens.0", "norms.0", "head.parts.0")
    )


def test_it_goes_on_only_from_its_own(labelled):
    step = Step(labelled(dict.fromkeys(CLASSES, 2)), CLASSES, TINY, TrainedModel(Network(TINY, 2), OLD))
    with pytest.raises(ValueError, match="network of its own"):
        dytox.learn(step)
    cosine = TINY.model_copy(update={"head": "cosine"})
    with pytest.raises(ValueError, match="linear head"):
        dytox.learn(Step(labelled(dict.fromkeys(OLD, 2)), OLD, cosine))
    bare = TINY.model_copy(update={"backbone": "none"})
    with pytest.raises(ValueError, match="no last feature map"):
        dytox.learn(Step(labelled(dict.fromkeys(OLD, 2)), OLD, bare))

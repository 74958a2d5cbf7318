import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestCentroid
from torch.nn.functional import normalize

from detector.model.network import CosineHead, Network
from detector.release.manifest import Architecture
from updater.benchmark.learners import bias_correction, icarl
from updater.benchmark.learners.bias_correction import learn_bic, learn_wa
from updater.training.crop_rows import backbone_rows, classify_items, forensic_rows
from updater.training.loop import start
from updater.training.step import FIRST, Options, Step, TrainedModel, load_trained

TINY = Architecture(backbone="lcnet_035", crop_px=64, width=8)
CPU = torch.device("cpu")
RECIPE = replace(FIRST, backbone_steps=0, balanced_steps=2, batch=8)
OPTIONS = Options(exposure="none")


def entropy(wanted, z):
    said = 1 / (1 + math.exp(-z))
    return -wanted * math.log(said) - (1 - wanted) * math.log(1 - said)


def test_labels_are_asked_of_new_classes_alone():
    logits = torch.tensor([[1.0, -2.0, 0.5, 3.0]], requires_grad=True)
    value = icarl.sigmoid_entropy(2)(logits, torch.tensor([3]))
    assert value.item() == pytest.approx(entropy(0, 0.5) + entropy(1, 3.0), rel=1e-5)
    torch.autograd.backward(value)
    assert (logits.grad != 0).tolist() == [[False, False, True, True]]


def test_old_classes_are_held_to_what_the_teacher_said():
    logits, teacher = torch.tensor([[1.0, -2.0]], requires_grad=True), torch.tensor([[0.3, 0.7]])
    q = torch.sigmoid(teacher)[0].tolist()
    value = icarl.sigmoid_distillation(logits, teacher)
    assert value.item() == pytest.approx(entropy(q[0], 1.0) + entropy(q[1], -2.0), rel=1e-5)
    torch.autograd.backward(value)
    assert (logits.grad != 0).all()


def test_both_are_the_mean_over_items():
    logits = torch.tensor([[1.0, -2.0], [0.0, 4.0]])
    both = icarl.sigmoid_entropy(0)(logits, torch.tensor([0, 1]))
    each = [icarl.sigmoid_entropy(0)(logits[i : i + 1], torch.tensor([i])) for i in range(2)]
    assert both.item() == pytest.approx((each[0] + each[1]).item() / 2)
    assert icarl.sigmoid_distillation(logits, logits.flip(0)).item() == pytest.approx(
        sum(icarl.sigmoid_distillation(logits[i : i + 1], logits[1 - i : 2 - i]).item() for i in range(2)) / 2
    )


def test_a_class_without_items_keeps_its_mean():
    before = normalize(torch.tensor([[1.0, 1], [0, 2]]), dim=1)
    means = icarl.class_means(torch.tensor([[3.0, 0], [0, 5]]), torch.tensor([0, 2]), 3, before)
    assert torch.allclose(means, torch.tensor([[1.0, 0], [0, 1], [0, 1]]))


def test_the_head_names_the_class_of_the_nearest_mean(labelled):
    items = labelled({"real": 8, "blocky": 8, "striped": 8})
    classes = ("real", "blocky", "striped")
    network = icarl.learn(Step(items, classes, TINY, options=OPTIONS, recipe=RECIPE)).network

    def said(of):
        rows, features = backbone_rows(network, of.crops, CPU), forensic_rows(network, of.crops, CPU)
        return classify_items(network, rows, features, of.starts)

    oracle = NearestCentroid()
    oracle.fit(normalize(said(items).embedding, dim=1).numpy(), items.families)
    oracle.centroids_ = normalize(torch.from_numpy(oracle.centroids_), dim=1).numpy()
    fresh = said(labelled({"real": 6, "blocky": 6, "striped": 6}, seed=1))
    nearest = oracle.predict(normalize(fresh.embedding, dim=1).numpy())
    assert [classes[i] for i in fresh.logits.argmax(1)] == nearest.tolist()
    assert len(set(nearest)) > 1


@pytest.fixture(scope="module")
def first(labelled):
    items = labelled({"real": 4, "blocky": 4})
    return icarl.learn(Step(items, ("real", "blocky"), TINY, options=OPTIONS, recipe=RECIPE))


def test_the_trained_head_goes_on_and_teaches(first, labelled):
    assert isinstance(first.network.head, CosineHead)
    assert first.network.architecture.head == "cosine"
    items = labelled({"real": 2, "blocky": 2, "striped": 4}, seed=2)
    begun = start(Step(items, ("real", "blocky", "striped"), TINY, first)).head
    assert torch.equal(begun.weight[:2], first.kept["head.weight"])
    assert torch.equal(begun.bias[:2], first.kept["head.bias"])
    assert torch.equal(load_trained(first).head.weight, first.kept["head.weight"])


def test_a_network_whose_trained_head_is_gone_is_refused(first, labelled):
    previous = TrainedModel(first.network, first.classes)
    with pytest.raises(ValueError, match="keeps the previous network's architecture"):
        Step(labelled({"striped": 2}), ("real", "blocky", "striped"), TINY, previous)


def test_what_classifies_is_a_network_that_a_release_can_hold(first):
    loaded = Network(first.network.architecture, 2)
    loaded.load_state_dict(first.network.state_dict())
    crops = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 64, 64)).astype(np.float32))
    with torch.no_grad():
        one, other = (network.eval()(crops, torch.eye(2)).logits for network in (loaded, first.network))
    assert torch.equal(one, other)


def test_two_binary_logits_classify_by_themselves(labelled):
    items, options = labelled({"real": 4, "blocky": 4}), replace(OPTIONS, scheme="bc")
    learnt = icarl.learn(Step(items, ("real", "blocky"), TINY, options=options, recipe=RECIPE))
    assert learnt.network.architecture == TINY
    assert not learnt.kept


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Network(TINY, 4).eval()


def said(network):
    crops = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 3, 64, 64)).astype(np.float32))
    with torch.no_grad():
        return network(crops, torch.eye(3)).logits


def test_alpha_one_and_beta_nought_are_the_identity(network):
    assert torch.equal(said(bias_correction.correct_bias(network, 1.0, 0.0, 2)), said(network))


def test_the_correction_moves_the_new_logits_alone(network):
    before, after = said(network), said(bias_correction.correct_bias(network, 0.5, -2.0, 2))
    assert torch.allclose(after[:, :2], before[:, :2])
    assert torch.allclose(after[:, 2:], 0.5 * before[:, 2:] - 2.0, atol=1e-5)
    assert isinstance(bias_correction.correct_bias(network, 0.5, -2.0, 2).head, torch.nn.Linear)


@pytest.mark.parametrize(
    ("logits", "target", "old", "released"),
    [
        ([[1.5, -0.3, 0.2], [-0.2, 0.7, 1.3], [0.3, -1.2, 2.0]], [0, 1, 2], 2, (1.778758, -1.776467)),
        ([[3.0, -3.0], [-3.0, 3.0]], [0, 1], 1, (1.169111, 0.0)),
        ([[1.0, 2.0, -1.0]], [0], 2, (1.133102, -0.144145)),
        (
            [[2.0, 1, 0, 3], [0, 2.5, 1, 2], [1, -1, 2, 4], [0.5, 0, 1, 3]],
            range(4),
            3,
            (-0.380072, -0.428139),
        ),
    ],
)
def test_the_fit_of_bic_is_its_codes(logits, target, old, released):
    found = bias_correction.fit_correction(torch.tensor(logits), torch.tensor(target), old, seed=0)
    assert found == pytest.approx(released, abs=1e-5)


def test_as_many_groups_of_each_class_are_held_out_and_never_half_of_one(labelled):
    items = labelled({"real": 20, "blocky": 20, "striped": 40})
    items = replace(items, groups=tuple(f"{one}-{i // 2}" for i, one in enumerate(items.families)))
    out = bias_correction.held_out(items, ("real", "blocky"), seed=0)
    assert Counter(np.array(items.families)[out]) == {"real": 2, "blocky": 2, "striped": 2}
    groups = np.array(items.groups)
    assert not set(groups[out]) & set(groups[~out])


def test_nothing_is_held_out_where_no_old_class_can_spare_a_group(labelled):
    items = labelled({"real": 1, "blocky": 1, "striped": 9})
    assert not bias_correction.held_out(items, ("real", "blocky"), seed=0).any()
    assert not bias_correction.held_out(labelled({"striped": 9}), ("real", "blocky"), seed=0).any()


@pytest.mark.parametrize("learn", [learn_bic, learn_wa])
def test_a_cosine_head_is_refused(learn, labelled):
    cosine = TINY.model_copy(update={"head": "cosine"})
    with pytest.raises(ValueError, match="linear head"):
        learn(Step(labelled({"real": 2, "blocky": 2}), ("real", "blocky"), cosine))


def test_an_update_ends_corrected(labelled, monkeypatch):
    step = Step(
        labelled({"real": 6, "blocky": 6}),
        ("real", "blocky"),
        TINY,
        options=Options(exposure="none"),
        recipe=replace(FIRST, backbone_steps=0, balanced_steps=3, batch=8),
    )
    items = labelled({"real": 6, "blocky": 6, "striped": 6}, seed=1)
    update = replace(step, train=items, classes=("real", "blocky", "striped"), previous=learn_bic(step))
    found = learn_bic(update).network.head
    monkeypatch.setattr(bias_correction, "fit_correction", lambda *given: (1.0, 0.0))
    bare = learn_bic(update).network.head
    assert torch.equal(found.weight[:2], bare.weight[:2])
    ratio = found.weight[2] / bare.weight[2]
    assert torch.allclose(ratio, ratio[0].expand_as(ratio), rtol=1e-4)
    assert ratio[0] != 1


def test_the_factor_is_the_ratio_of_mean_norms():
    moved = bias_correction.align_weights(torch.tensor([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0], [0.0, 2.0]]), 2)
    # Old norms 5 and 1, new ones 10 and 2: the factor is 3 / 6.
    assert torch.allclose(moved, torch.tensor([[3.0, 4.0], [0.0, 1.0], [3.0, 4.0], [0.0, 1.0]]))


@pytest.mark.parametrize("old", [0, 3])
def test_without_old_or_without_new_classes_nothing_changes(old):
    weight = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(bias_correction.align_weights(weight, old), weight)


def test_an_update_leaves_equal_mean_norms(labelled):
    recipe = replace(FIRST, backbone_steps=1, balanced_steps=5, batch=8)
    items = labelled({"real": 4, "blocky": 4})
    first = Step(items, ("real", "blocky"), TINY, options=Options(exposure="none"), recipe=recipe)
    items = labelled({"real": 2, "blocky": 2, "striped": 4, "posterised": 4}, seed=1)
    classes = ("real", "blocky", "striped", "posterised")
    learnt = learn_wa(replace(first, train=items, classes=classes, previous=learn_wa(first)))
    norms = learnt.network.head.weight.norm(dim=1)
    assert norms[:2].mean().item() == pytest.approx(norms[2:].mean().item(), rel=1e-5)

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestCentroid
from torch.nn.functional import normalize

from detector.model.network import CosineHead, Network
from detector.release.manifest import Architecture
from updater.benchmark.learners import icarl
from updater.training.loop import start
from updater.training.pools import backbone_rows, classify_items, forensic_rows
from updater.training.step import FIRST, Options, Step, TrainedModel, load_trained

TINY = Architecture(backbone="lcnet_035", crop_px=64, width=8)
CPU = torch.device("cpu")
RECIPE = replace(FIRST, backbone_steps=0, balanced_steps=2, batch=8)
OPTIONS = Options(exposure="none")


def entropy(wanted: float, z: float) -> float:
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
def first(labelled) -> TrainedModel:
    items = labelled({"real": 4, "blocky": 4})
    return icarl.learn(Step(items, ("real", "blocky"), TINY, options=OPTIONS, recipe=RECIPE))


def test_the_trained_head_goes_on_and_teaches(first, labelled):
    assert isinstance(first.network.head, CosineHead)
    assert first.network.architecture.head == "cosine"
    items = labelled({"real": 2, "blocky": 2, "striped": 4}, seed=2)
    step = Step(items, ("real", "blocky", "striped"), TINY, first)
    begun = start(step).head
    assert torch.equal(begun.weight[:2], first.kept["head.weight"])
    assert torch.equal(begun.bias[:2], first.kept["head.bias"])
    assert torch.equal(load_trained(first).head.weight, first.kept["head.weight"])


def test_a_network_whose_trained_head_is_gone_is_refused(first, labelled):
    with pytest.raises(ValueError, match="keeps the previous network's architecture"):
        Step(
            labelled({"striped": 2}),
            ("real", "blocky", "striped"),
            TINY,
            TrainedModel(first.network, first.classes),
        )


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

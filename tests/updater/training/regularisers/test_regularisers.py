"""Rejection by another loss or another batch: LogitNorm, T2FNorm, AugMix, RegMixup by their formulas."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_ood.loss import LogitNorm
from scipy.spatial.distance import jensenshannon

from detector.model.network import Network
from detector.release.architecture import Architecture
from updater.benchmark.synthetic.families import FAMILIES
from updater.training import forward
from updater.training.batches import Drawn, TrainingSet
from updater.training.losses import classification
from updater.training.pools import backbone_rows, forensic_rows
from updater.training.regularisers import (
    augmix,
    logitnorm,
    regmixup,
    t2fnorm,
)
from updater.training.regularisers.augmix import AUGMENTATIONS, Augmentation
from updater.training.step import FIRST, Options, Step

TINY = Architecture(backbone="lcnet_035", crop_px=64, width=8, dropout=0)
CPU = torch.device("cpu")
CLASSES = ("real", "blocky", "striped")
RECIPE = replace(FIRST, label_smoothing=0.0)
CROPS = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), np.uint8).repeat(4, 1).repeat(4, 2)


def on_crops(step, data, network, drawn):
    return forward.on_crops(step, data, network, forward.ready_images(step, data, network, drawn))


def rows(*values):
    return torch.tensor(values, dtype=torch.float32)


@given(st.lists(st.lists(st.floats(-9, 9, width=32), min_size=4, max_size=4), min_size=1, max_size=5))
@settings(max_examples=40)
def test_logit_norm_is_pytorch_oods(values):
    logits, target = rows(*values), torch.arange(len(values)) % 4
    ours = F.cross_entropy(logitnorm.normalised(logits, 0.04), target)
    assert ours.item() == pytest.approx(LogitNorm(t=0.04)(logits, target).item(), rel=1e-4, abs=1e-5)


def test_normalised_logits_have_the_length_that_the_temperature_says():
    assert torch.allclose(logitnorm.normalised(rows([3.0, 4.0]), 0.5), rows([1.2, 1.6]))


def test_normalised_features_have_the_length_that_the_temperature_says():
    assert torch.allclose(t2fnorm.normalised(rows([3.0, -4.0]), 0.1), rows([6.0, -8.0]))


def test_the_divergence_of_versions_is_scipys():
    versions = tuple(torch.randn(5, 3, generator=torch.Generator().manual_seed(n)) for n in range(2))
    shares = [F.softmax(one.double(), 1).numpy() for one in versions]
    expected = np.mean(jensenshannon(*shares, axis=1) ** 2)
    assert augmix.jensen_shannon(versions).item() == pytest.approx(expected, rel=1e-4)


def test_the_divergence_of_three_versions_by_hand():
    sure, even = rows([0.0, -200.0]), rows([0.0, 0.0])
    # Twice (1, 0) and once (1/2, 1/2): the middle is (5/6, 1/6).
    expected = (2 * np.log(6 / 5) + 0.5 * np.log(0.5 / (5 / 6)) + 0.5 * np.log(0.5 / (1 / 6))) / 3
    assert augmix.jensen_shannon((sure, even, sure)).item() == pytest.approx(expected, rel=1e-5)
    assert augmix.jensen_shannon((even, even, even)).item() == pytest.approx(0, abs=1e-7)


def test_the_divergence_reaches_every_logit_of_every_version():
    versions = tuple(rows([1.0, 0, -1]).mul(n).requires_grad_() for n in (1, 2, -3))
    torch.autograd.backward(augmix.jensen_shannon(versions))
    assert all((one.grad != 0).all() for one in versions)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_an_augmentation_keeps_shape_and_type_and_leaves_no_black_frame(name):
    grey = np.full((64, 64, 3), 90, np.uint8)
    grey[20:40, 20:40] = 160
    changed = AUGMENTATIONS[name].apply(np.random.default_rng(1), grey, 0.3)
    assert changed.shape == grey.shape
    assert changed.dtype == np.uint8
    if "tone" not in AUGMENTATIONS[name].kinds:
        assert min(changed[0].min(), changed[-1].min(), changed[:, 0].min(), changed[:, -1].min()) >= 64


@pytest.mark.parametrize("family", FAMILIES)
def test_augmix_uses_nothing_of_a_left_out_familys_kinds(family, monkeypatch):
    used = set()
    for name, one in AUGMENTATIONS.items():

        def spy(rng, crop, strength, name=name, apply=one.apply):
            used.add(name)
            return apply(rng, crop, strength)

        monkeypatch.setitem(AUGMENTATIONS, name, Augmentation(one.kinds, spy))
    without = FAMILIES[family].kinds
    for seed in range(60):
        augmix.augment(np.random.default_rng(seed), CROPS[:1], without)
    assert used == {name for name, one in AUGMENTATIONS.items() if not one.kinds & without}


def test_at_opencils_severity_ten_of_thirteen_operations_change_nothing():
    operations = AUGMENTATIONS | augmix.MORE_OF_OPENCIL
    assert len(operations) == 13
    rng = np.random.default_rng(0)
    changing = {
        n for n, one in operations.items() if not np.array_equal(one.apply(rng, CROPS[0], 0), CROPS[0])
    }
    assert changing == {"autocontrast", "equalize", "posterize"}
    assert np.array_equal(operations["posterize"].apply(rng, CROPS[0], 0), CROPS[0] // 16 * 16)


def test_opencils_versions_are_mixtures_of_what_changes(monkeypatch):
    inverted = Augmentation(frozenset(), lambda rng, crop, strength: 255 - crop if strength == 0 else crop)
    monkeypatch.setattr(augmix, "AUGMENTATIONS", {})
    monkeypatch.setattr(augmix, "MORE_OF_OPENCIL", {"inverted": inverted})
    (version,) = augmix.augment(np.random.default_rng(0), CROPS[:1], frozenset(), as_opencil=True)
    share = (version.astype(float) - CROPS[0]) / np.where(CROPS[0] == 127.5, np.nan, 255 - 2.0 * CROPS[0])
    clear = np.abs(255 - 2.0 * CROPS[0]) > 100
    assert 0 < np.median(share[clear]) < 1
    assert share[clear] == pytest.approx(np.median(share[clear]), abs=0.03)


def test_without_blending_a_version_is_one_chain_and_no_mixture(monkeypatch):
    inverted = Augmentation(frozenset(), lambda rng, crop, strength: 255 - crop)
    monkeypatch.setattr(augmix, "AUGMENTATIONS", {"inverted": inverted})
    chains = augmix.augment(np.random.default_rng(0), CROPS, frozenset({"blending"}))
    assert all(np.array_equal(a, b) or np.array_equal(a, 255 - b) for a, b in zip(chains, CROPS, strict=True))
    mixtures = augmix.augment(np.random.default_rng(0), CROPS, frozenset())
    assert not any(
        np.array_equal(a, b) or np.array_equal(a, 255 - b) for a, b in zip(mixtures, CROPS, strict=True)
    )


def test_mixed_crops_by_hand_where_the_partner_has_fewer():
    crops = np.array([0, 100, 200, 40], np.uint8)[:, None, None, None]
    mixing = regmixup.Mixing(np.array([1, 0]), 0.75)
    mixed = regmixup.mixed_crops(crops, np.array([0, 0, 0, 1]), mixing)
    assert mixed.ravel().tolist() == [10, 85, 160, 30]


# What reaches the loss. Two items of two crops each, one crop of each drawn.


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Network(TINY, 3).eval()


@pytest.fixture(scope="module")
def data(labelled, network):
    items = labelled({"real": 1, "blocky": 1, "striped": 1})
    features = forensic_rows(network, items.crops, CPU)
    network.feature_mean.copy_(features.mean(0))
    network.feature_whitening.copy_(torch.diag(1 / features.std(0).clamp_min(1e-3)))
    fake = torch.tensor([False, True, True])
    return items, TrainingSet(np.arange(3), fake, items.crops, items.starts, features)


def step(data, rejection, without=frozenset(), exposure="none"):
    options = Options(rejection=rejection, exposure=exposure)
    return Step(data[0], CLASSES, TINY, options=options, recipe=RECIPE, without=without)


DRAWN = Drawn(0, np.arange(3), np.array([0, 2, 4]), torch.eye(3))


def said_of(network, images):
    with torch.no_grad():
        crops = torch.from_numpy(np.asarray(images)).permute(0, 3, 1, 2).float()
        return network(crops, torch.eye(len(crops)))


def test_where_no_rejection_is_trained_for_the_loss_is_the_cross_entropy(network, data):
    one = step(data, "none")
    value = classification(one, data[1])(on_crops(one, data[1], network, DRAWN))
    said = said_of(network, data[1].crops[[0, 2, 4]])
    assert value.item() == pytest.approx(F.cross_entropy(said.logits, torch.arange(3)).item(), rel=1e-4)


def test_logit_norm_reads_the_logits_of_all_k_plus_1_classes_at_one_length(network, data):
    one = step(data, "logit-norm", exposure="class")
    value = classification(one, data[1])(on_crops(one, data[1], network, DRAWN))
    said = said_of(network, data[1].crops[[0, 2, 4]])
    logits = torch.cat([said.logits, said.pseudo_logit[:, None]], 1)
    assert value.item() == pytest.approx(LogitNorm(t=0.04)(logits, torch.arange(3)).item(), rel=1e-3)


def test_t2f_norm_reads_the_normalised_embedding_in_training_alone(network, data):
    one = step(data, "t2f-norm")
    batch = on_crops(one, data[1], network, DRAWN)
    said = said_of(network, data[1].crops[[0, 2, 4]])
    assert torch.allclose(batch.output.logits, said.logits, atol=1e-4)
    expected = F.cross_entropy(network.head(10 * F.normalize(said.embedding, dim=1)), torch.arange(3))
    assert classification(one, data[1])(batch).item() == pytest.approx(expected.item(), rel=1e-3)


def test_augmix_adds_twelve_times_the_divergence_of_what_is_said_of_three_versions(network, data):
    one, crops = step(data, "augmix"), data[1].crops[[0, 2, 4]]
    versions = (255 - crops, crops[:, ::-1].copy())
    batch = on_crops(one, data[1], network, replace(DRAWN, augmented=versions))
    logits = [said_of(network, version).logits for version in (crops, *versions)]
    plain = F.cross_entropy(logits[0], torch.arange(3))
    expected = plain + 12 * augmix.jensen_shannon(tuple(logits))
    assert classification(one, data[1])(batch).item() == pytest.approx(expected.item(), rel=1e-3)


def test_regmixup_adds_the_loss_of_mixed_crops_under_both_labels(network, data):
    one, crops = step(data, "regmixup"), data[1].crops[[0, 2, 4]].astype(np.float32)
    partner = np.array([1, 2, 0])
    batch = on_crops(one, data[1], network, replace(DRAWN, mixing=regmixup.Mixing(partner, 0.7)))
    mixed = said_of(network, 0.7 * crops + np.float32(0.3) * crops[partner]).logits
    own, other = (F.cross_entropy(mixed, torch.from_numpy(target)) for target in (np.arange(3), partner))
    expected = F.cross_entropy(said_of(network, crops).logits, torch.arange(3)) + 0.7 * own + 0.3 * other
    assert classification(one, data[1])(batch).item() == pytest.approx(expected.item(), rel=1e-3)


def test_regmixup_mixes_features_where_there_are_no_crops_or_blending_is_left_out(network, data):
    drawn = replace(DRAWN, mixing=regmixup.Mixing(np.array([1, 2, 0]), 0.7))
    seen = backbone_rows(network, data[1].crops, CPU)
    features = data[1].features
    pick = [0, 2, 4]
    with torch.no_grad():
        mixed = [0.7 * one[pick] + 0.3 * one[pick][[1, 2, 0]] for one in (seen, features)]
        expected = network.classify(*mixed).logits
    plain, strict = step(data, "regmixup"), step(data, "regmixup", FAMILIES["blended"].kinds)
    on_them = (
        forward.on_rows(plain, data[1], network, forward.ready_pools(plain, drawn, [(seen, features)]))
        .views[0]
        .logits
    )
    left_out = on_crops(strict, data[1], network, drawn).views[0].logits
    on_mixed_crops = on_crops(plain, data[1], network, drawn).views[0].logits
    assert torch.allclose(on_them, expected, atol=1e-4)
    assert torch.allclose(left_out, expected, atol=1e-4)
    assert not torch.allclose(on_mixed_crops, expected, atol=1e-3)


def test_gradients_of_each_loss_reach_every_logit(network, data):
    for rejection in ("logit-norm", "t2f-norm", "augmix", "regmixup"):
        one = step(data, rejection, exposure="class")
        mixing = regmixup.Mixing(np.array([1, 2, 0]), 0.7) if rejection == "regmixup" else None
        versions = (255 - data[1].crops[[0, 2, 4]],) if rejection == "augmix" else ()
        batch = on_crops(one, data[1], network, replace(DRAWN, augmented=versions, mixing=mixing))
        network.zero_grad()
        torch.autograd.backward(classification(one, data[1])(batch))
        assert (network.head.bias.grad != 0).all(), rejection
        assert (network.pseudo_head.bias.grad != 0).all(), rejection

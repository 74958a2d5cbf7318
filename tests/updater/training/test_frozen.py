"""What a frozen model makes of pictures is computed once ever, and never taken from what is not its own."""

from dataclasses import replace

import numpy as np
import pytest
import structlog
import torch

from detector.model.backbone import shown_to
from detector.release.manifest import Picture
from updater.training import frozen, kept_rows
from updater.training.frozen import (
    SHARES,
    digest_of,
    fit_vote,
    frozen_branch,
    frozen_rows,
    picture_of,
    share_of_vote,
    vote_beside,
)
from updater.training.step import Options
from updater.training.weights import WeightsError, read_weights

CPU = torch.device("cpu")
NAME, SIDE = "test_efficientnet", 32


@pytest.fixture
def pictures():
    return np.random.default_rng(0).integers(0, 256, (7, SIDE, SIDE, 3), np.uint8)


@pytest.fixture
def kept(tmp_path):
    return tmp_path / "kept"


@pytest.fixture
def branch(published):
    return made(published)


def made(published):
    weights = read_weights(published(NAME))
    return frozen_branch(picture_of(NAME, SIDE, shown_to(NAME), weights), weights)


@pytest.fixture
def looked(monkeypatch):
    """How many pictures the model was shown."""
    seen = []
    by_rows = frozen.by_rows

    def spy(function, pictures, *others):
        seen.append(len(pictures))
        return by_rows(function, pictures, *others)

    monkeypatch.setattr(frozen, "by_rows", spy)
    return seen


def test_each_picture_is_looked_at_once_ever_wherever_it_comes_again(branch, pictures, kept, looked):
    first = frozen_rows(branch, pictures[:4], CPU, kept)
    again = frozen_rows(branch, pictures[[6, 3, 2, 2, 0, 6]], CPU, kept)
    assert looked == [4, 1]
    assert np.array_equal(again[1:5], first[[3, 2, 2, 0]])
    assert np.array_equal(again[0], again[5])
    assert (
        sum(path.stat().st_size for path in kept.rglob("*.safetensors"))
        < 5 * (2 * first.shape[1] + 32) + 1000
    )  # float16


def test_rows_are_the_models_own_to_the_precision_that_is_kept_with_a_folder_and_without(
    branch, pictures, kept
):
    rows = frozen_rows(branch, pictures, CPU)
    with torch.no_grad():
        wanted = branch.features(torch.from_numpy(pictures).permute(0, 3, 1, 2).float())
    assert np.allclose(rows, wanted.numpy(), rtol=1e-3, atol=1e-4)
    assert rows.dtype == np.float32
    for _ in range(2):
        assert np.array_equal(frozen_rows(branch, pictures, CPU, kept), rows)


def test_what_was_done_before_an_interruption_is_not_done_again(branch, pictures, kept, looked, monkeypatch):
    monkeypatch.setattr(kept_rows, "_ROWS_A_FILE", 3)

    def stop(done, total):
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        frozen_rows(branch, pictures, CPU, kept, stop)
    looked.clear()
    told = []
    frozen_rows(branch, pictures, CPU, kept, lambda *at: told.append(at))
    assert looked == [3, 1]
    assert told[-1] == (7, 7)


def test_another_models_file_and_a_damaged_one_are_told_of_and_not_taken(
    branch, pictures, kept, looked, published
):
    rows = frozen_rows(branch, pictures, CPU, kept)
    other = made(published)
    with torch.no_grad():
        next(other.backbone.parameters()).mul_(-1)
    assert digest_of(other) != digest_of(branch)
    (file,) = kept.rglob("*.safetensors")
    place = kept / digest_of(other)[:16]
    place.mkdir()
    (place / file.name).write_bytes(file.read_bytes())
    with structlog.testing.capture_logs() as logs:
        others = frozen_rows(other, pictures, CPU, kept)
    assert [(log["event"], log["reason"]) for log in logs] == [
        ("frozen outputs computed anew", "damaged, or of another model")
    ]
    assert not np.allclose(others, rows, atol=1e-2)

    content = file.read_bytes()
    for damaged in (content[:-9] + bytes([content[-9] ^ 1]) + content[-8:], content[:50], b""):
        file.write_bytes(damaged)
        looked.clear()
        assert np.array_equal(frozen_rows(branch, pictures, CPU, kept), rows)
        assert looked == [7]
    assert np.array_equal(frozen_rows(branch, pictures, CPU, kept), rows)
    assert looked == [7]


def test_a_model_shown_pictures_otherwise_is_another_model(branch):
    whose = branch.picture.model_copy(update={"weights": "somebody else's"})
    darker = branch.picture.model_copy(update={"mean": (1.0, 2.0, 3.0)})
    own = digest_of(branch)
    found = []
    for picture in (whose, darker):
        branch.picture = Picture.model_validate(picture.model_dump())
        found.append(digest_of(branch))
    assert found[0] == own != found[1]


def test_weights_that_give_no_numbers_are_one_line(branch, pictures, kept):
    with torch.no_grad():
        for value in branch.backbone.parameters():
            value.mul_(1e9)
    with pytest.raises(WeightsError, match=f"{NAME} gives numbers that are none or beyond 65504") as error:
        frozen_rows(branch, pictures, CPU, kept)
    assert "\n" not in str(error.value)
    assert not kept.exists()


def clouds(count, classes, spread=1.0, seed=0):
    """Points of classes whose means are the corners of a simplex, in 6 dimensions."""
    rng = np.random.default_rng(seed)
    families = [name for name in classes for _ in range(count)]
    means = 4 * np.eye(6)[[classes.index(name) for name in families]]
    return (means + spread * rng.normal(size=means.shape)).astype(np.float32), families


def test_two_classes_of_equal_spread_are_told_apart_halfway_between_their_means():
    # Discriminants of spherical classes: w = (m1 - m0) / s^2, and 0 in the middle, however many each has.
    features, families = clouds(4000, ["real", "gan"])
    weight, bias = fit_vote(features[1000:], families[1000:], ("real", "gan"))
    assert weight.shape == (2, 6)
    difference = (weight[1] - weight[0]).numpy()
    assert difference == pytest.approx([-4, 4, 0, 0, 0, 0], abs=0.25)
    middle = torch.tensor([2.0, 2, 0, 0, 0, 0])
    assert float((weight @ middle + bias).diff()) == pytest.approx(0, abs=0.3)


@pytest.mark.parametrize("classes", [["real", "a"], ["real", "a", "b"]])
def test_logits_are_in_the_order_of_the_classes_and_0_on_average(classes):
    features, families = clouds(60, classes)
    weight, bias = fit_vote(features, families, classes[:1] + classes[:0:-1])
    logits = torch.from_numpy(features) @ weight.T + bias
    named = [(classes[:1] + classes[:0:-1])[number] for number in logits.argmax(1)]
    assert np.mean(np.array(named) == np.array(families)) > 0.97
    assert torch.allclose(logits.sum(1), torch.zeros(len(logits)), atol=1e-3)


def test_more_features_than_items_are_no_obstacle():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(20, 300)).astype(np.float32)
    weight, _ = fit_vote(features, ["real"] * 10 + ["gan"] * 10, ("real", "gan"))
    assert torch.isfinite(weight).all()


def test_a_vote_that_knows_nothing_has_no_share_and_one_that_knows_more_has_a_large_one():
    rng = np.random.default_rng(0)
    families = ["real", "gan"] * 200
    right = torch.tensor([[1.0, -1], [-1, 1]]).repeat(200, 1)
    noise = torch.from_numpy(rng.normal(size=(400, 2))).float()
    even = np.full(400, 1 / 400)
    own = 0.5 * right + noise
    assert share_of_vote(own, 3 * noise[torch.randperm(400)], families, ("real", "gan"), even) < 0.2
    assert share_of_vote(own, right, families, ("real", "gan"), even) == SHARES[-1]
    wrong_counts = np.where(np.arange(400) < 200, 1.0, 0.0)
    half = torch.cat([right[:200], -right[200:]])
    assert share_of_vote(own, half, families, ("real", "gan"), wrong_counts) == SHARES[-1]
    assert share_of_vote(own, half, families, ("real", "gan"), 1 - wrong_counts) == 0


def test_of_a_class_without_items_nothing_is_said():
    features, families = clouds(60, ["real", "a"])
    weight, bias = fit_vote(features, families, ("real", "gone", "a"))
    logits = torch.from_numpy(features) @ weight.T + bias
    assert not logits[:, 1].any()
    assert (
        np.mean((logits[:, 2] > logits[:, 0]).numpy() == np.array([family == "a" for family in families]))
        > 0.97
    )
    none = fit_vote(features[:60], families[:60], ("real", "a"))
    assert not any(part.any() for part in none)


@pytest.mark.parametrize(("scheme", "logits"), [("mc", 4), ("bc", 2)])
def test_a_vote_speaks_of_what_the_networks_logits_stand_for(labelled, scheme, logits):
    classes = ("x/real", "x/blocky", "y/real", "y/striped")
    parts = []
    for seed, count in enumerate((30, 10)):
        features, _ = clouds(count, list(classes), 0.3, seed)
        parts.append(replace(labelled(dict.fromkeys(classes, count), seed), picture_features=features))
    vote = vote_beside(torch.zeros(40, logits), *parts, classes, Options(scheme=scheme))
    said = vote.on(parts[1]).argmax(1).numpy()
    right = [
        classes.index(family) if logits == 4 else int("real" not in family) for family in parts[1].families
    ]
    assert np.mean(said == np.array(right)) > 0.9


def test_without_items_held_back_there_is_no_share(labelled):
    items = replace(labelled({"real": 4, "a/real": 4}), picture_features=np.eye(8, dtype=np.float32))
    with pytest.raises(ValueError, match="no item is held back"):
        vote_beside(torch.zeros(0, 2), items, items.take([]), ("real", "a/real"))


def test_a_vote_that_is_forty_times_too_sure_is_given_a_fortieth():
    rng = np.random.default_rng(1)
    truth = rng.normal(size=4000)
    families = [
        "gan" if chance < 1 / (1 + np.exp(-2 * own)) else "real"
        for own, chance in zip(truth, rng.random(4000), strict=True)
    ]
    right = torch.from_numpy(np.stack([-truth, truth], 1)).float()
    share = share_of_vote(
        torch.zeros(4000, 2), 40 * right, families, ("real", "gan"), np.full(4000, 1 / 4000)
    )
    assert share == pytest.approx(1 / 40, rel=0.12)

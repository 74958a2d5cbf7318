"""What a frozen model makes of pictures is computed once ever, and never taken from what is not its own."""

import numpy as np
import pytest
import structlog
import torch

from detector.model.backbone import shown_to
from detector.release.architecture import Picture
from updater.training import frozen
from updater.training.frozen import digest_of, frozen_branch, frozen_rows, picture_of
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
    monkeypatch.setattr(frozen, "_ROWS_A_FILE", 3)

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
    assert [(one["event"], one["reason"]) for one in logs] == [
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

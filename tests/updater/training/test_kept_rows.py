"""What a frozen model makes of pictures is computed once ever, and never taken from what is not its own."""

from dataclasses import replace

import numpy as np
import pytest
import structlog

from updater.training import kept_rows as module
from updater.training.kept_rows import FrozenModel, kept_rows
from updater.training.weights import WeightsError

SIDE = 8


@pytest.fixture
def pictures():
    return np.random.default_rng(0).integers(0, 256, (7, SIDE, SIDE, 3), np.uint8)


@pytest.fixture
def kept(tmp_path):
    return tmp_path / "kept"


@pytest.fixture
def looked():
    """How many pictures the model was shown."""
    return []


@pytest.fixture
def model(looked):
    def rows(pictures, say):
        looked.append(len(pictures))
        say(len(pictures), len(pictures))
        return pictures.mean((1, 2)).astype(np.float32) / 3

    return FrozenModel("a" * 64, 3, "mean", "nobody's", rows)


def test_each_picture_is_looked_at_once_ever_wherever_it_comes_again(model, pictures, kept, looked):
    first = kept_rows(model, pictures[:4], kept)
    again = kept_rows(model, pictures[[6, 3, 2, 2, 0, 6]], kept)
    assert looked == [4, 1]
    assert np.array_equal(again[1:5], first[[3, 2, 2, 0]])
    assert np.array_equal(again[0], again[5])
    stored = sum(path.stat().st_size for path in kept.rglob("*.safetensors"))
    assert stored < 5 * (2 * first.shape[1] + 32) + 1000  # float16


def test_rows_are_the_models_own_to_the_precision_that_is_kept_with_a_folder_and_without(
    model, pictures, kept
):
    rows = kept_rows(model, pictures)
    assert np.allclose(rows, pictures.mean((1, 2)) / 3, rtol=1e-3)
    assert rows.dtype == np.float32
    for _ in range(2):
        assert np.array_equal(kept_rows(model, pictures, kept), rows)


def test_what_was_done_before_an_interruption_is_not_done_again(model, pictures, kept, looked, monkeypatch):
    monkeypatch.setattr(module, "_ROWS_A_FILE", 3)

    def stop(done, total):
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept_rows(model, pictures, kept, stop)
    looked.clear()
    told = []
    kept_rows(model, pictures, kept, lambda *at: told.append(at))
    assert looked == [3, 1]
    assert told[-1] == (7, 7)


def test_another_models_file_and_a_damaged_one_are_told_of_and_not_taken(model, pictures, kept, looked):
    rows = kept_rows(model, pictures, kept)
    (file,) = kept.rglob("*.safetensors")
    other = replace(model, digest="b" * 64, rows=lambda pictures, say: -model.rows(pictures, say))
    place = kept / other.digest[:16]
    place.mkdir()
    (place / file.name).write_bytes(file.read_bytes())
    with structlog.testing.capture_logs() as logs:
        others = kept_rows(other, pictures, kept)
    assert [(log["event"], log["reason"]) for log in logs] == [
        ("frozen outputs computed anew", "damaged, or of another model")
    ]
    assert np.array_equal(others, -rows)

    content = file.read_bytes()
    for damaged in (content[:-9] + bytes([content[-9] ^ 1]) + content[-8:], content[:50], b""):
        file.write_bytes(damaged)
        looked.clear()
        assert np.array_equal(kept_rows(model, pictures, kept), rows)
        assert looked == [7]
    assert np.array_equal(kept_rows(model, pictures, kept), rows)
    assert looked == [7]


def test_weights_that_give_no_numbers_are_one_line(model, pictures, kept):
    infinite = replace(model, rows=lambda pictures, say: 1e9 * model.rows(pictures, say))
    with pytest.raises(WeightsError, match="mean gives numbers that are none or beyond 65504") as error:
        kept_rows(infinite, pictures, kept)
    assert "\n" not in str(error.value)
    assert not kept.exists()

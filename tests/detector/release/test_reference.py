from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detector.release.reference import Reference, load_reference


def reference() -> Reference:
    rng = np.random.default_rng(0)
    return Reference(
        rng.normal(size=(4, 3)).astype(np.float32),
        ("a", "b", "c", "d"),
        ("real", "real", "blend", "blend"),
        rng.normal(size=5).astype(np.float32),
        rng.normal(size=(5, 3)).astype(np.float32),
        rng.normal(size=(4, 2)).astype(np.float32),
        rng.normal(size=6).astype(np.float32),
        rng.normal(size=(6, 2)).astype(np.float32),
        rng.normal(size=(4, 3)).astype(np.float32),
        rng.normal(size=(5, 3)).astype(np.float32),
        np.array([2, 1]),
    )


def test_a_reference_read_back_is_the_one_that_was_saved(tmp_path: Path) -> None:
    saved = reference()
    saved.save(tmp_path / "reference.safetensors")
    got = load_reference(tmp_path / "reference.safetensors", saved.ids, saved.families)
    arrays = [name for name, value in vars(saved).items() if isinstance(value, np.ndarray)]
    assert len(arrays) == 9
    for name in arrays:
        np.testing.assert_array_equal(getattr(got, name), getattr(saved, name))
    assert (got.ids, got.families) == (saved.ids, saved.families)


def test_whitening_takes_the_mean_away_first() -> None:
    made = reference()
    np.testing.assert_array_equal(made.whiten(made.mean[None]), np.zeros((1, 3), np.float32))
    centre = made.whiten_embedding(made.embedding_mean[None])
    np.testing.assert_array_equal(centre, np.zeros((1, 2), np.float32))
    np.testing.assert_array_equal(made.whiten_traces(made.mean[None]), np.zeros((1, 3), np.float32))


def test_names_that_do_not_count_the_rows_are_refused() -> None:
    made = reference()
    with pytest.raises(ValueError, match="4 rows of features, 4 of embeddings, 4 of traces, 3 ids"):
        replace(made, ids=made.ids[:3])


def test_groups_of_traces_that_do_not_fill_their_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="are not 3 in all"):
        replace(reference(), trace_widths=np.array([2, 2]))

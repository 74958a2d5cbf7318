import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector import session as session_module
from detector.artifact import Artifact
from detector.scored import TensorsError, beyond_tolerance, differences
from detector.session import Session
from detector.verdicts import pooling_for
from ingest.records import Decoded, Region


def item(crops: int, regions: list[tuple[int, ...]], px: int = 2) -> Decoded:
    pixels = np.random.default_rng(crops).integers(0, 256, (crops, px, px, 3), dtype=np.uint8)
    kept = tuple(Region("face", (0, 0, 8, 8), 0, None, rows) for rows in regions)
    return Decoded("image", "PNG", 100, 80, 1, pixels, kept)


@given(
    st.lists(
        st.integers(1, 12).flatmap(
            lambda crops: st.tuples(
                st.just(crops), st.lists(st.integers(0, crops - 1).map(lambda only: (only,)), max_size=2)
            )
        ),
        min_size=1,
        max_size=12,
    )
)
def test_each_row_is_in_one_run_that_holds_all_its_crops_and_no_more_than_one_item_too_many(
    shape: list[tuple[int, list[tuple[int, ...]]]],
) -> None:
    items = [item(crops, regions) for crops, regions in shape]
    pooling = pooling_for(items).pooling
    runs = list(session_module._runs(pooling, 8))
    assert sorted(np.concatenate([rows for rows, _ in runs])) == list(range(len(pooling)))
    largest = max(crops for crops, _ in shape)
    for rows, span in runs:
        np.testing.assert_allclose(pooling[rows, span].sum(1), 1, rtol=1e-6)
        assert span.stop - span.start <= max(8, largest)


def test_many_crops_score_as_they_do_all_at_once(
    untrained_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(untrained_artifact.folder, threads=1)
    pooled = pooling_for([item(crops, [(0, crops - 1)], session.crop_px) for crops in (4, 3, 5, 9, 1, 1, 2)])
    parts = session.score(pooled.crops, pooled.pooling)
    monkeypatch.setattr(session_module, "_RUN_CROPS", len(pooled.crops))
    at_once = session.score(pooled.crops, pooled.pooling)
    assert beyond_tolerance(differences(parts, at_once)) == []
    assert beyond_tolerance(differences(parts, session.score(pooled.crops[::-1], pooled.pooling))) != []


def test_crops_of_another_size_are_refused(untrained_artifact: Artifact) -> None:
    session = Session(untrained_artifact.folder, threads=1)
    with pytest.raises(TensorsError, match="this model takes 64 px"):
        session.score(np.zeros((1, 32, 32, 3), np.uint8), np.ones((1, 1), np.float32))

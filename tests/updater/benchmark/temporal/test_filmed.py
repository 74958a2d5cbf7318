"""Pieces of films: as many real as forged, by all families, and figures by film and of all together."""

from pathlib import Path

import numpy as np
import pytest

from updater.benchmark.synthetic.clips import FRAMES, SIDE_PX
from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.films import films_in
from updater.benchmark.temporal.filmed import by_film, pieces_of
from updater.benchmark.temporal.method import Answer
from updater.distortions.clip_writing import to_h264
from updater.scan.clips import scanned
from updater.scan.features import SeenFrames
from updater.scan.reading import CROP_PX


def test_figures_are_by_film_and_of_all_films_together():
    real, forged = (scanned(np.full((20, 2), value, np.float32), []) for value in (0, 1))
    forged = scanned(forged.features, [(5, 15)])

    def found(features: np.ndarray) -> Answer:
        # Sees a stretch in every clip, and in forged ones where it is.
        first = 5 if features[0, 0] else 10
        scores = np.zeros(20)
        scores[first : first + 10] = 0.9 if features[0, 0] else 0.2
        return Answer(scores, np.array([[first, first + 10, scores.max()]]))

    told = by_film({"a": [("real", real), ("blended", forged)], "b": [("real", real)] * 2}, found)
    assert set(told) == {"a", "b", "all"}
    assert told["a"]["ap_0.5"] == told["all"]["ap_0.5"] == 1
    assert np.isnan(told["b"]["ap_0.5"])
    assert told["all"]["clip_auc_best"] == 1


@pytest.mark.slow
def test_a_film_gives_a_real_and_a_forged_piece_for_each_family(tmp_path: Path):
    rng = np.random.default_rng(0)
    film = rng.integers(0, 256, (FRAMES + 2, 34, 34, 1), np.uint8).repeat(4, 1).repeat(4, 2).repeat(3, 3)
    (tmp_path / "film.mp4").write_bytes(to_h264(film, 30, "mp4"))
    (found,), _ = films_in(tmp_path, FRAMES, SIDE_PX)
    pieces = pieces_of(found, SeenFrames(CROP_PX))
    families = [family for family, _ in pieces]
    assert families.count("real") == len(FAMILIES)
    assert {*families} == {"real", *FAMILIES}
    assert all(len(clip.features) == FRAMES for _, clip in pieces)
    assert all(bool(len(clip.segments)) == (family != "real") for family, clip in pieces)

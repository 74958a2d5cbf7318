"""Videos of the temporal task: their annotated frames alone, read once, and what cannot be used counted."""

from pathlib import Path

import numpy as np
import pytest

from updater.benchmark.temporal import videos as module
from updater.benchmark.temporal.videos import videos
from updater.data.layouts.entries import Entry, Segment
from updater.data.layouts.listed import Tally
from updater.distortions.clip_writing import to_h264


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "video.mp4"
    path.write_bytes(to_h264(rng.integers(0, 256, (30, 64, 64, 3), np.uint8), 30, "mp4"))
    return path


def entry(path: Path, annotated: Segment | None, *segments: Segment) -> Entry:
    return Entry(path, int(bool(segments)), "made up", "group", "train", segments, annotated)


def test_only_annotated_frames_are_seen_and_segments_count_from_the_first_of_them(file: Path, tmp_path: Path):
    whole, part = entry(file, Segment(0, 30)), entry(file, Segment(5, 25), Segment(9, 20))
    seen = videos([whole, part], tmp_path / "cache", Tally())
    assert [len(one.clip.features) for one in seen] == [30, 20]
    assert np.allclose(seen[1].clip.features, seen[0].clip.features[5:25], atol=1e-3)
    assert seen[1].clip.segments.tolist() == [[4, 15]]


def test_a_file_is_read_once(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    listed = [entry(file, Segment(0, 30), Segment(0, 9))]
    (first,) = videos(listed, tmp_path / "cache", Tally())
    monkeypatch.setattr(module, "frame_features", None)
    (again,) = videos(listed, tmp_path / "cache", Tally())
    assert np.array_equal(first.clip.features, again.clip.features)


def test_what_cannot_be_used_is_counted(file: Path, tmp_path: Path):
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    tally = Tally()
    listed = [
        entry(file, None),
        entry(broken, Segment(0, 9)),
        entry(tmp_path / "missing.mp4", Segment(0, 9)),
        entry(file, Segment(0, 31)),
        entry(file, Segment(4, 5)),
    ]
    assert videos(listed, tmp_path / "cache", tally) == []
    told = [note.partition(" (first")[0] for note in tally.notes()]
    assert told == [
        "1 videos are labelled as a whole, and left out of the temporal task",
        "1 videos cannot be decoded, or change their size, and are left out",
        "1 videos cannot be read, and are left out",
        "1 videos have fewer frames than their list tells of, and are left out",
        "1 videos have one annotated frame, and are left out",
    ]

"""ForgeryNet's lists of videos: which frames are forged, which are not, and of which nothing is known."""

from collections import Counter
from pathlib import Path

import pytest
from makers import noted, touch

from updater.data.layouts.entries import Entry, Extent, Listing, SegmentsError, with_frames
from updater.data.layouts.forgerynet import RowError, load_forgerynet, row_of

V = "val_video_release"


def hash_of(number: int) -> str:
    return f"{number:032x}"


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """A validation list with every trap of stretches, and files of directories that it passes over."""
    rows = {
        "partly": f"3 {V}/4/{hash_of(1)}/partly/video.mp4 0 10 0 10 35 1 45 30 0 1 2 4",
        "late": f"2 {V}/1/{hash_of(2)}/late/video.mp4 79 10 1 89 20 0 1 2 1",
        "real": f"1 {V}/19/{hash_of(3)}/real/video.mp4 0 73 0 0 0 0",
        "flagged": f"2 {V}/17/{hash_of(4)}/flagged/video.mp4 0 20 0 20 20 1 0 0 0",
        "unforged": f"1 {V}/3/{hash_of(5)}/unforged/video.mp4 0 20 0 1 2 3",
        "overlap": f"2 {V}/3/{hash_of(6)}/overlap/video.mp4 0 20 0 19 20 1 1 2 3",
        "gap": f"2 {V}/3/{hash_of(7)}/gap/video.mp4 0 20 0 21 20 1 1 2 3",
        "empty": f"1 {V}/3/{hash_of(8)}/empty/video.mp4 5 0 1 1 2 3",
        "negative": f"1 {V}/3/{hash_of(9)}/negative/video.mp4 -5 10 1 1 2 3",
        "flag": f"1 {V}/3/{hash_of(10)}/flag/video.mp4 0 10 2 1 2 3",
        "short": f"2 {V}/3/{hash_of(11)}/short/video.mp4 0 10 1 1 2 3",
    }
    for row in rows.values():
        touch(tmp_path / "Validation" / "video" / row.split()[1])
    for directory in (2, 8):
        for name in ("a", "b"):
            touch(tmp_path / f"Validation/video/{V}/{directory}/{hash_of(20)}/{name}/video.mp4")
        touch(tmp_path / f"Validation/video/{V}/{directory}/notes.txt")
    (tmp_path / "Validation/video_list.txt").write_text("\n".join(rows.values()) + "\n")
    return tmp_path


def listed(listing: Listing) -> dict[str, Entry]:
    return {entry.path.parent.name: entry for entry in listing.entries}


def test_stretches_become_segments_and_the_frames_outside_of_them_stay_unlabelled(videos):
    found = listed(load_forgerynet(videos, "video"))
    assert found["partly"].segments == (Extent(10, 45),)
    assert found["partly"].annotated == (0, 75)
    assert found["late"].segments == (Extent(79, 89),)
    assert found["late"].annotated == (79, 109)
    assert (found["real"].label, found["real"].segments, found["real"].annotated) == (0, (), (0, 73))


def test_a_real_directory_is_real_whatever_its_flags_say(videos):
    listing = load_forgerynet(videos, "video")
    flagged = listed(listing)["flagged"]
    assert (flagged.label, flagged.family, flagged.segments) == (0, "real", ())


def test_a_forged_video_without_a_forged_stretch_is_for_classification_alone(videos):
    listing = load_forgerynet(videos, "video")
    unforged = listed(listing)["unforged"]
    assert (unforged.label, unforged.segments, unforged.annotated) == (1, (), None)
    assert noted(listing, "contradict")[0].startswith("2 rows")


def test_rows_whose_stretches_do_not_follow_on_one_another_are_left_out_and_counted(videos):
    listing = load_forgerynet(videos, "video")
    assert {"overlap", "gap", "empty", "negative", "flag", "short"} & set(listed(listing)) == set()
    assert noted(listing, "overlap")[0].startswith("4 rows")
    assert noted(listing, "not of their list's form")[0].startswith("2 rows")


def test_directories_2_and_8_are_found_without_a_row_and_have_no_segments(videos):
    listing = load_forgerynet(videos, "video")
    whole = [e for e in listing.entries if e.family in ("FS-GAN", "ATVG-Net")]
    assert Counter(e.family for e in whole) == {"FS-GAN": 2, "ATVG-Net": 2}
    assert all((e.label, e.segments, e.annotated, e.group) == (1, (), None, hash_of(20)) for e in whole)
    assert noted(listing, "directories 2 and 8")[0].startswith("4 videos")


def test_directory_2_in_a_list_has_no_segments_either_and_is_not_found_twice(videos):
    with (videos / "Validation/video_list.txt").open("a") as rows:
        rows.write(f"1 {V}/2/{hash_of(20)}/a/video.mp4 0 80 1 1 2 2\n")
    listing = load_forgerynet(videos, "video")
    (only,) = [e for e in listing.entries if e.family == "FS-GAN"]
    assert (only.segments, only.annotated) == ((), None)


def test_segments_beyond_the_end_are_told_once_the_number_of_frames_is_known(videos):
    late = listed(load_forgerynet(videos, "video"))["late"]
    assert with_frames(late, 109).frames == 109
    assert with_frames(late, 300).segments == late.segments, "the last stretch may end before the file"
    with pytest.raises(SegmentsError, match=r"has 108 frames.*frame 108"):
        with_frames(late, 108)


@pytest.mark.parametrize("line", ["", "x", "1 a/3/b 0", "-1 a/3/b/c 1 2 3", "9999999999 a/3/b/c 0 1 0 1 2 3"])
def test_a_line_that_is_none_is_refused_by_its_reader(line):
    with pytest.raises(RowError):
        row_of(line, "video")

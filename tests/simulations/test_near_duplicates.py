from near_duplicates import COPIES, measure, pairs_joined
from pictures import drawn, hashes_of


def test_copies_join_and_different_pictures_do_not(tmp_path):
    for seed in range(8):
        drawn(seed).save(tmp_path / f"{seed}.png")
    (tmp_path / "notes.txt").write_text("no picture")
    shares = measure(tmp_path, lambda *_: None)
    assert (shares.pictures, shares.flat, shares.pairs, shares.joined) == (8, 0, 28, 0)
    assert {name for name, joined in shares.copies.items() if joined < 8} <= {"trimmed by 5 % at one corner"}


def test_pairs_are_counted_whichever_came_first_and_mirrored_too():
    pictures = [drawn(1), COPIES["mirrored"](drawn(1)), drawn(2), COPIES["JPEG q70"](drawn(1))]
    assert pairs_joined([hashes_of(picture) for picture in pictures]) == 3

"""What all lists have in common: groups, splits, names that lead elsewhere."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updater.data.layouts.entries import Entry, LayoutError, Split
from updater.data.layouts.listed import (
    Tally,
    below,
    grouped,
    is_there,
    json_in,
    kept_apart,
    lines_of,
    refuse_another_release,
)

KEYS = st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3), max_size=12)
SPLITS: list[Split] = ["train", "val", "test"]
ENTRIES = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(SPLITS)), max_size=20)


@given(KEYS)
def test_items_are_of_one_group_exactly_if_keys_link_them(keys: list[list[str]]) -> None:
    # The slow way: what an item shares keys with, until nothing more comes.
    expected = []
    for first in keys:
        reached = set(first)
        while any(reached & set(of) and not set(of) <= reached for of in keys):
            reached |= {key for of in keys if reached & set(of) for key in of}
        expected.append(min(reached))
    assert grouped(keys) == expected


@given(ENTRIES)
def test_no_group_is_left_in_two_splits_and_all_that_goes_is_counted(drawn: list[tuple[str, Split]]) -> None:
    entries = [Entry(Path(str(n)), 0, "real", group, split) for n, (group, split) in enumerate(drawn)]
    tally = Tally()
    kept = kept_apart(entries, tally)
    homes = {(entry.group, entry.split) for entry in kept}
    assert len({group for group, _ in homes}) == len(homes)
    assert {entry.group for entry in kept} == {entry.group for entry in entries}
    assert sum(int(note.split()[0]) for note in tally.notes()) == len(entries) - len(kept)
    assert [entry for entry in entries if entry.split == "test"] == [e for e in kept if e.split == "test"]


@pytest.mark.parametrize("listed", ["../a", "a/../../b", "/a", "\\a", "", ".", "a\0b", "..\\a"])
def test_a_name_that_leads_out_of_its_folder_is_none(listed: str) -> None:
    assert below(Path("/data"), listed) is None


def test_names_have_either_slash() -> None:
    assert below(Path("/data"), "a\\b/c.mp4") == Path("/data/a/b/c.mp4")


def test_a_name_that_no_disk_can_hold_is_not_there(tmp_path: Path) -> None:
    assert not is_there(tmp_path / ("x" * 5000))
    assert is_there(Path(__file__))


def test_a_tally_tells_each_kind_once_with_its_count_and_its_first() -> None:
    tally = Tally()
    for name in ("a", "b"):
        tally.add("files are missing", name)
    tally.add("rows are odd", "c")
    assert tally.notes() == ("2 files are missing (first: a)", "1 rows are odd (first: c)")
    assert (tally["files are missing"], tally["others"]) == (2, 0)


def test_what_a_list_names_cannot_break_a_line_or_a_terminal() -> None:
    tally = Tally()
    tally.add("files are missing", "a\n\x1b[2Jb")
    assert tally.notes() == ("1 files are missing (first: a??[2Jb)",)


def test_half_of_the_files_is_enough() -> None:
    refuse_another_release("list", 1, 2)
    refuse_another_release("list", 0, 0)
    with pytest.raises(LayoutError, match="names 3 files, of which 1"):
        refuse_another_release("list", 1, 3)


def test_a_list_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="cannot be read"):
        list(lines_of(tmp_path))
    with pytest.raises(LayoutError, match="cannot be read"):
        json_in(tmp_path / "none.json")
    (tmp_path / "a").write_bytes(b"\xff\xfe\n\n one \n")
    assert list(lines_of(tmp_path / "a"))[1:] == ["one"]
    with pytest.raises(LayoutError, match="is no JSON"):
        json_in(tmp_path / "a")

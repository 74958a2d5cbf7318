"""Tables on terminals of several widths, and in a pipe."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from updater.terminal import cut, print_grid, wrap_text

HEAD = ("release", "state", "since", "by", "classes", "share", "reason")


ROWS = [
    (
        "a1b2c3d4e5f6",
        "proposed",
        "2026-11-21 22:13:01",
        "an-operator-with-a-very-long-login-name@example.org",
        "real, blended-with-a-remarkably-long-family-name, upsampled",
        "123456.789",
        "it forgets nothing, and the operator has looked at every one of its contact sheets",
    ),
    ("0f0f0f0f0f0f", "live", "2026-11-20 02:03:04", "bob", "real, fake", "0.125", "-"),
]


def shown(width, head=HEAD, rows=ROWS, *, terminal=True):
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    print_grid(console, "releases", head, rows)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_table_fits_and_breaks_no_word_and_cuts_no_number(width):
    out = shown(width)
    assert max(map(len, out.splitlines())) <= width
    for number in ("123456.789", "0.125", "22:13:01", "02:03:04", "2026-11-21"):
        assert number in out
    words = set(" ".join(" ".join(row) for row in (HEAD, *ROWS)).split())
    for word in out.replace("releases", "", 1).replace("─", " ").split():
        if word in words:
            continue
        begin, _, end = word.partition("…")
        assert any(whole.startswith(begin) and whole.endswith(end) for whole in words), word
        assert "…" in word


def test_names_by_which_things_are_named_stay_whole_in_the_first_column():
    for width in (60, 80):
        assert "a1b2c3d4e5f6" in shown(width)


def test_a_pipe_gets_every_name_whole_on_one_line_a_row():
    out = shown(80, terminal=False)
    for row in ROWS:
        assert any(all(cell in line for cell in row) for line in out.splitlines())
    assert "…" not in out


def test_more_numbers_than_a_terminal_is_wide_come_in_parts_that_each_begin_with_the_name():
    head = ("accuracy on", *map(str, range(1, 21)))
    rows = [(f"{n} a-task-with-a-long-name", *["100.0"] * 20) for n in range(1, 21)]
    for width in (60, 80):
        out = shown(width, head, rows)
        assert max(map(len, out.splitlines())) <= width
        assert out.count("100.0") == 400
        assert len(re.findall("^accuracy", out, re.MULTILINE)) > 1
    assert out.count("releases") == 1


def test_cells_keep_their_style_and_are_no_markup():
    console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system="standard")
    print_grid(console, "", ("", ""), [(Text("holds", "green"), "[red]x[/red]")])
    assert isinstance(console.file, io.StringIO)
    out = console.file.getvalue()
    assert "\x1b[32mholds" in out
    assert "[red]x[/red]" in out


@given(st.text(st.characters(categories=["L", "N"]), max_size=60), st.integers(3, 30))
def test_a_name_is_cut_in_the_middle_to_its_width_and_a_number_never(name, width):
    short = cut(name, width)
    if name.isdecimal() or Text(name).cell_len <= width:
        assert short == name
    else:
        assert Text(short).cell_len <= width
        begin, _, end = short.partition("…")
        assert name.startswith(begin)
        assert name.endswith(end)


@given(st.lists(st.from_regex(r"[a-z]{1,9}", fullmatch=True), max_size=20), st.integers(9, 40))
def test_what_is_wrapped_keeps_every_word(words, width):
    out = wrap_text(" ".join(words), width)
    assert out.split() == words
    assert all(len(line) <= width for line in out.split("\n"))

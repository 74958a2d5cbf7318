"""Tables as a terminal shows them: as wide as it is, words whole, long names cut in the middle.

Light, since every command of the command line prints by it.
"""

import re
from collections.abc import Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

# Between two columns.
_GAP = 2
# A name is cut to this many characters before anything else gives way, and to the second number only
# where the table is too wide still. A first column, by which people name things, keeps more.
_COMFORTABLE, _LEAST, _LEAST_FIRST = 14, 6, 12
_NUMBER = re.compile(r"[\W_]*|[\W_]*\d[\d\W_]*(?:[eE][-+]?\d+)?[\W_]*")

Cell = str | Text


def print_grid(console: Console, title: str, head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table; one that is too wide even with its names cut, in parts below one another.

    Into a file or a pipe it goes with all names whole. A head of empty names is left out.
    """
    grid = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    if title:
        console.print(Text(title, "italic"), soft_wrap=not console.is_terminal)
    for columns in _parts(console, head, grid):
        widths = _widths(console, [head[column] for column in columns], _only(grid, columns))
        table = Table(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, show_header=any(head)
        )
        for column, width in zip(columns, widths, strict=True):
            numbers = all(_NUMBER.fullmatch(row[column].plain) for row in grid)
            table.add_column(
                Text(wrap_text(head[column], width)),
                width=width,
                no_wrap=True,
                justify="right" if numbers else "left",
            )
        for row in _only(grid, columns):
            cells = zip(row, widths, strict=True)
            table.add_row(*(Text(wrap_text(cell.plain, width), cell.style) for cell, width in cells))
        # Where nobody looks on, the width that rich assumes says nothing.
        before, console.width = console.width, max(console.width, sum(widths) + _GAP * len(widths))
        console.print(table)
        console.width = before
        console.print()


def wrap_text(text: str, width: int) -> str:
    """The text in lines of at most this width, broken between words; a longer word is cut, but no number."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for word in (cut(word, width) for word in paragraph.split(" ")):
            if line and cell_len(line) + 1 + cell_len(word) > width:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}" if line else word
        lines.append(line)
    return "\n".join(lines)


def cut(name: str, width: int) -> str:
    """A name of at most this width, its middle left out: abcd…wxyz. A number stays as it is."""
    if cell_len(name) <= width or _NUMBER.fullmatch(name):
        return name
    begin, end = "", ""
    while True:
        longer_begin, longer_end = name[: len(begin) + 1], name[len(name) - len(end) - 1 :]
        if cell_len(longer_begin) + 1 + cell_len(end) > width:
            return f"{begin}…{end}"
        begin = longer_begin
        if cell_len(begin) + 1 + cell_len(longer_end) > width:
            return f"{begin}…{end}"
        end = longer_end


def _parts(console: Console, head: Sequence[str], grid: list[list[Text]]) -> Iterator[list[int]]:
    """The columns of each part, the first column in every one."""
    part = [0]
    for column in range(1, len(head)):
        least = [_least(head[c], [row[c].plain for row in grid], first=not c) for c in [*part, column]]
        if console.is_terminal and len(part) > 1 and sum(least) + _GAP * len(part) > console.width:
            yield part
            part = [0]
        part.append(column)
    yield part


def _widths(console: Console, head: Sequence[str], grid: list[list[Text]]) -> list[int]:
    columns = [[row[number].plain for row in grid] for number in range(len(head))]
    widths = [max(map(_longest_line, (name, *cells))) for name, cells in zip(head, columns, strict=True)]
    if not console.is_terminal:
        return widths
    room = console.width - _GAP * (len(head) - 1)
    least = [
        _least(name, cells, first=not number)
        for number, (name, cells) in enumerate(zip(head, columns, strict=True))
    ]
    comfortable = [
        width if all(map(_NUMBER.fullmatch, cells)) else max(floor, min(width, _COMFORTABLE))
        for floor, cells, width in zip(least, columns, widths, strict=True)
    ]
    for floor in (comfortable, least):
        while sum(widths) > room:
            above = [number for number in range(len(widths)) if widths[number] > floor[number]]
            if not above:
                break
            widths[max(above, key=widths.__getitem__)] -= 1
    return widths


def _least(name: str, cells: Sequence[str], *, first: bool) -> int:
    """The width below which a column's numbers, or its head, would be cut."""
    words = [word for cell in cells for word in cell.split()]
    longest_number = max((cell_len(word) for word in words if _NUMBER.fullmatch(word)), default=0)
    longest_name = max((cell_len(word) for word in words), default=0)
    longest_head = max((cell_len(word) for word in name.split()), default=0)
    return max(longest_number, longest_head, min(longest_name, _LEAST_FIRST if first else _LEAST), 1)


def _longest_line(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _only(grid: list[list[Text]], columns: Sequence[int]) -> list[list[Text]]:
    return [[row[column] for column in columns] for row in grid]

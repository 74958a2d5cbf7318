"""A picture of many crops side by side, each pixel as it was, for a person to look at."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

_MARGIN_PX = 12
_TITLE_PX = 20
_TEXT_PX = 11
_LINE_PX = 15
_COLUMNS = 6
_PAPER = (250, 250, 248)
_INK = (25, 25, 25)
_FAINT = (110, 110, 110)


@dataclass(frozen=True)
class Tile:
    """One crop, uint8 RGB (S, S, 3), with two lines below it."""

    crop: NDArray[np.uint8]
    caption: str
    note: str


def contact_sheet(title: str, tiles: Sequence[Tile]) -> bytes:
    """Return a PNG of the tiles under a title, six a row, the crops at native scale."""
    side = max((tile.crop.shape[0] for tile in tiles), default=128)
    cell_width, cell_height = side + _MARGIN_PX, side + 2 * _LINE_PX + _MARGIN_PX
    rows = -(-len(tiles) // _COLUMNS)
    top = _TITLE_PX + 2 * _MARGIN_PX
    size = (_COLUMNS * cell_width + _MARGIN_PX, top + rows * cell_height + _MARGIN_PX)
    sheet = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((_MARGIN_PX, _MARGIN_PX), title, _INK, ImageFont.load_default(_TITLE_PX - 4))
    font = ImageFont.load_default(_TEXT_PX)
    for i, tile in enumerate(tiles):
        left = _MARGIN_PX + i % _COLUMNS * cell_width
        upper = top + i // _COLUMNS * cell_height
        sheet.paste(Image.fromarray(tile.crop), (left, upper))
        draw.text((left, upper + side + 2), _fitted(draw, tile.caption, font, side), _INK, font)
        draw.text((left, upper + side + 2 + _LINE_PX), _fitted(draw, tile.note, font, side), _FAINT, font)
    out = io.BytesIO()
    sheet.save(out, "PNG")
    return out.getvalue()


def _fitted(
    draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int
) -> str:
    # The end of an id (its offset or digest) tells items apart, so the beginning gives way.
    if draw.textlength(text, font) <= width:
        return text
    while text and draw.textlength("…" + text, font) > width:
        text = text[1:]
    return "…" + text

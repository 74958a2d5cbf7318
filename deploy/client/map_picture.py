"""A map over its picture, to look at. Pure."""

import base64
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from detector.records import ForgeryMap

_COLOUR = (255, 40, 40)
_STRONGEST = 0.6
"""how much of the picture the most certain cell hides"""


def cells_of_map(found: ForgeryMap) -> NDArray[np.uint8]:
    """Return a map's cells, uint8 [h, w]: 0 real, 255 forged."""
    return np.asarray(Image.open(BytesIO(base64.b64decode(found.png)), formats=("PNG",)))


def drawn(picture: NDArray[np.uint8], native_width: int, found: ForgeryMap) -> Image.Image:
    """Draw the cells over a picture, the redder the likelier forged, a box around what is marked.

    picture: uint8 RGB [H, W, 3], the whole frame at any size, of native_width px. What was not looked at is
    darker.
    """
    cells = cells_of_map(found)
    scale = picture.shape[1] / native_width
    left, top, width, height = found.part
    part = tuple(round(side * scale) for side in (left, top, left + width, top + height))
    # The cells at the right and lower edge may reach beyond the part, which cuts them.
    reach = tuple(max(1, round(count * found.cell_px * scale)) for count in cells.shape[::-1])
    opacity = Image.fromarray((cells * _STRONGEST).astype(np.uint8)).resize(reach, Image.Resampling.NEAREST)
    shown = Image.fromarray(picture)
    dark = Image.eval(shown, lambda level: level // 2)
    dark.paste(shown.crop(part), part[:2])
    red = Image.new("RGB", reach, _COLOUR)
    inside = (0, 0, part[2] - part[0], part[3] - part[1])
    dark.paste(red.crop(inside), part[:2], opacity.crop(inside))
    if found.box is not None:
        x, y, box_width, box_height = found.box
        x0, y0 = x * scale, y * scale
        corners = [x0, y0, max(x0, x0 + box_width * scale - 1), max(y0, y0 + box_height * scale - 1)]
        ImageDraw.Draw(dark).rectangle(corners, outline=_COLOUR, width=2)
    return dark

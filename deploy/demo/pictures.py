"""What the demonstration leaves to look at: maps over pictures, beside what was sent and what is true."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from deploy.client.map_picture import drawn
from deploy.demo.place import Answered, overlap
from detector.records import Verdict
from memory.records import REAL

_TILE_PX, GAP_PX, LINE_PX, _TEXT_PX = 256, 8, 22, 14
_HEADS = ("as it was sent", "forged in truth", "the map of its verdict")
_COLUMNS = 2
PAPER, _INK = (255, 255, 255), (20, 20, 20)
_EXPLAINED = (
    "Left: the file. Middle: what was forged of it, the rest darkened; the release never sees this. Right:"
    " what the release says, the redder the likelier forged, with a box around the largest region it marks."
)


@dataclass(frozen=True)
class Shown:
    """A picture that was sent, by family, with its truth and its answer."""

    data: bytes
    family: str
    answered: Answered


def to_look_at(sent: Sequence[Shown]) -> list[Shown]:
    """Choose of each family the first picture that has a map, or where none has, the first."""
    chosen = {}
    for family in dict.fromkeys(one.family for one in sent):
        of_it = [one for one in sent if one.family == family]
        chosen[family] = next((one for one in of_it if one.answered.verdict.map is not None), of_it[0])
    return list(chosen.values())


def sheet(pictures: Sequence[Shown]) -> Image.Image:
    """Draw a row for each picture: as it was sent, where it was forged, and its verdict's map."""
    rows = -(-len(pictures) // _COLUMNS)
    width = len(_HEADS) * (_TILE_PX + GAP_PX) + 2 * GAP_PX
    height = _TILE_PX + 2 * LINE_PX + GAP_PX
    paper = Image.new("RGB", (_COLUMNS * width, LINE_PX + GAP_PX + rows * height), PAPER)
    write(paper, (GAP_PX, GAP_PX), _EXPLAINED)
    for number, one in enumerate(pictures):
        left = GAP_PX + number % _COLUMNS * width
        top = LINE_PX + 2 * GAP_PX + number // _COLUMNS * height
        write(paper, (left, top), caption(one))
        pixels = _pixels(one.data)
        tiles = (Image.fromarray(pixels), _true(pixels, one.answered.mask), _said(pixels, one.answered))
        for place, (head, tile) in enumerate(zip(_HEADS, tiles, strict=True)):
            at = left + place * (_TILE_PX + GAP_PX)
            write(paper, (at, top + LINE_PX), head)
            paper.paste(tile.resize((_TILE_PX, _TILE_PX)), (at, top + 2 * LINE_PX))
    return paper


def caption(one: Shown) -> str:
    """Say in a line what was forged, and what was said of it."""
    verdict = one.answered.verdict
    begin = f"{one.family}, {one.answered.area:.0%} of the area: {called(verdict)}"
    if verdict.map is None:
        return f"{begin}, no map" if verdict.label != REAL else f"{begin}, so not mapped"
    met = overlap(verdict.map, one.answered.mask)
    return f"{begin}, {verdict.map.share:.0%} marked, IoU with the truth {met:.2f}"


def called(verdict: Verdict) -> str:
    """Say what a verdict calls its item."""
    return f"called {verdict.label}" + (f" ({verdict.family})" if verdict.label == "fake" else "")


def _pixels(data: bytes) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def _true(pixels: NDArray[np.uint8], mask: NDArray[np.uint8]) -> Image.Image:
    shown = pixels * (0.25 + 0.75 * mask[..., None].astype(np.float32) / 255)
    return Image.fromarray(shown.astype(np.uint8))


def _said(pixels: NDArray[np.uint8], answered: Answered) -> Image.Image:
    found = answered.verdict.map
    if found is None:
        return Image.new("RGB", (_TILE_PX, _TILE_PX), (225, 225, 225))
    # Over grey, since a picture may be red itself.
    grey = np.asarray(Image.fromarray(pixels).convert("L").convert("RGB"))
    return drawn(grey, answered.verdict.width, found)


def write(paper: Image.Image, at: tuple[int, int], text: str) -> None:
    """Write a line of text whose upper left corner is there."""
    ImageDraw.Draw(paper).text(at, text, fill=_INK, font=ImageFont.load_default(_TEXT_PX))

"""The second look at where a picture is forged: crops that cover it, and a map of their cells."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from detector.records import ForgeryMap, Verdict
from detector.release.crop_graphs import CELL_PX, CELLS, OF_PICTURE, MapContract
from detector.release.tensors import CROPS, Request
from detector.verdicts import Ask, JudgedItem
from ingest.records import Decoded, Place, PlacesPlan
from ingest.sandbox.crops import Box, grid

# most crops that a picture is mapped by: a larger one is mapped in part
MAX_CROPS = 36

# of the crops of several pictures in one request; TorchServe as it comes takes 6,553,500
MAX_REQUEST_BYTES = 6_000_000

Corners = tuple[tuple[int, int], ...]


class PictureMap(NamedTuple):
    """The map of the part of a picture that was looked at."""

    cells: NDArray[np.float32]
    """[h, w] in 0..1: how likely each cell is forged"""
    part: Box
    """left, top, width, height in native pixels; cells at its right and lower edge may reach beyond it"""


@dataclass(frozen=True)
class MapLook:
    """Maps a picture, or the frame of a video that looks most forged, by the release's localizer.

    What is called real is mapped only where it is asked for: a map of it would be empty, or cast doubt on it.
    mapped: whether the item of an id may be mapped at all.
    """

    contract: MapContract
    ask: Ask
    also_real: bool = False
    mapped: Callable[[str], bool] = lambda _: True
    max_request_bytes: int = MAX_REQUEST_BYTES
    adds: str = "map"
    is_optional: bool = True

    @property
    def most_crops(self) -> int:
        return self.max_request_bytes // (3 * self.contract.crop_px**2)

    def looks_at(self, item: JudgedItem) -> bool:
        return self.mapped(item.verdict.id) and (self.also_real or item.verdict.label != "real")

    def was_missed(self, item: JudgedItem) -> bool:
        """False: a map changes no label."""
        return False

    def plan(self, item: JudgedItem) -> PlacesPlan:
        """Return the crops that cover the frame, as many of them as are allowed."""
        verdict, crop_px = item.verdict, self.contract.crop_px
        corners, _ = covering(verdict.width, verdict.height, crop_px)
        frame = _frame(verdict)
        return PlacesPlan(crop_px=crop_px, places=tuple(Place(frame, *corner) for corner in corners))

    def add_results(self, items: Sequence[JudgedItem], decoded: Sequence[Decoded]) -> list[JudgedItem]:
        """Return the items with their maps. Raises ValueError for a frame of another size than the first."""
        covered = [covering(item.verdict.width, item.verdict.height, self.contract.crop_px) for item in items]
        for (corners, _), look in zip(covered, decoded, strict=True):
            if corners != tuple(region.box[:2] for region in look.regions):
                raise ValueError("the frame is not of the size that the first look saw")
        counts = [len(look.crops) for look in decoded]
        request: Request = {
            CROPS: np.concatenate([look.crops for look in decoded]),
            OF_PICTURE: np.repeat(np.arange(len(items)), counts),
        }
        cells = np.split(self.ask(request)[CELLS], np.cumsum(counts)[:-1])
        mapped = []
        for item, look, (corners, part), of_item in zip(items, decoded, covered, cells, strict=True):
            picture = assemble_map(of_item, corners, part)
            map_ = forgery_map(picture, self.contract.threshold, look.regions[0].frame)
            mapped.append(replace(item, verdict=item.verdict.model_copy(update={"map": map_})))
        return mapped


def forgery_map(picture: PictureMap, threshold: float, frame: int) -> ForgeryMap:
    """Return a map as a verdict holds it; what is marked is read from the 8 bits that it is kept in."""
    cells: NDArray[np.uint8] = np.rint(picture.cells * 255).astype(np.uint8)
    marked = cells >= threshold * 255
    png = BytesIO()
    Image.fromarray(cells).save(png, "PNG", optimize=True)
    return ForgeryMap(
        png=base64.b64encode(png.getvalue()).decode("ascii"),
        cell_px=CELL_PX,
        part=picture.part,
        threshold=threshold,
        share=float(marked.mean()),
        box=_box(marked, picture.part),
        frame=frame,
    )


def _frame(verdict: Verdict) -> int:
    """Return the number of the frame that looks most forged; 0 for a still image, which is its only one."""
    frames = [region for region in verdict.regions if region.kind == "frame"]
    return max(frames, key=lambda region: region.fake_probability).frame if frames else 0


def _box(marked: NDArray[np.bool_], part: Box) -> Box | None:
    """Return the box around the largest group of cells that touch by a side, within the part."""
    groups, count = ndimage.label(marked)
    if not count:
        return None
    sizes = np.bincount(groups.ravel())[1:]
    rows, columns = ndimage.find_objects(groups)[int(sizes.argmax())]
    left, top, width, height = part
    x0, y0 = left + columns.start * CELL_PX, top + rows.start * CELL_PX
    x1, y1 = min(left + columns.stop * CELL_PX, left + width), min(top + rows.stop * CELL_PX, top + height)
    return x0, y0, x1 - x0, y1 - y0


def covering(width: int, height: int, crop_px: int) -> tuple[Corners, Box]:
    """Lay crops over a picture of width x height px, or over its middle where it is too large for them.

    Returns their corners (left, top), multiples of 8 px, and the part of the picture that they cover whole.
    """
    wide, high = _count(width, crop_px), _count(height, crop_px)
    rows = min(high, MAX_CROPS // min(wide, int(MAX_CROPS**0.5)))
    columns = min(wide, MAX_CROPS // rows)
    part_width, part_height = min(width, columns * crop_px), min(height, rows * crop_px)
    left, top = _middle(width, part_width), _middle(height, part_height)
    inside = grid(part_width, part_height, crop_px, MAX_CROPS)
    return tuple((left + x, top + y) for x, y in inside), (left, top, part_width, part_height)


def assemble_map(cells: NDArray[np.float32], corners: Corners, part: Box) -> PictureMap:
    """Join the cells of crops, float32 [N, S / 8, S / 8], to a map; where crops overlap, the mean of them."""
    left, top, width, height = part
    shape = -(-height // CELL_PX), -(-width // CELL_PX)
    total, count = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for crop, (x, y) in zip(cells, corners, strict=True):
        row, column = (y - top) // CELL_PX, (x - left) // CELL_PX
        inside = crop[: shape[0] - row, : shape[1] - column]
        place = np.s_[row : row + inside.shape[0], column : column + inside.shape[1]]
        total[place] += inside
        count[place] += 1
    # The last cells of a side that is no multiple of 8 px may lie in no crop: they are as their neighbours.
    seen = np.nonzero(count.any(1))[0].max() + 1, np.nonzero(count.any(0))[0].max() + 1
    whole = (total / np.maximum(count, 1))[: seen[0], : seen[1]]
    return PictureMap(np.pad(whole, ((0, shape[0] - seen[0]), (0, shape[1] - seen[1])), mode="edge"), part)


def cells_of(mask: NDArray[np.float32], shape: tuple[int, int]) -> NDArray[np.float32]:
    """Return the mean of a mask, float32 [H, W], in each of h x w cells of 8 px, from its upper left corner.

    Beyond its right and lower edge the mask goes on as it is at the edge.
    """
    rows, columns = shape
    beyond = ((0, max(0, rows * CELL_PX - mask.shape[0])), (0, max(0, columns * CELL_PX - mask.shape[1])))
    whole = np.pad(mask, beyond, mode="edge")[: rows * CELL_PX, : columns * CELL_PX]
    mean: NDArray[np.float32] = whole.reshape(rows, CELL_PX, columns, CELL_PX).mean((1, 3), dtype=np.float32)
    return mean


def _count(side: int, crop_px: int) -> int:
    return max(1, -(-side // crop_px))


def _middle(side: int, part: int) -> int:
    return (side - part) // 2 // CELL_PX * CELL_PX

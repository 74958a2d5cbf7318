"""The second look at where a picture is forged: crops that cover it, and a map of their cells."""

import base64
from dataclasses import dataclass, replace
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from detector.looks.judged_item import Ask, Seen
from detector.looks.maps import PictureMap, assembled, covering
from detector.records import ForgeryMap, Verdict
from detector.release.cells import CELL_PX
from detector.release.contract import CROPS
from detector.release.map_contract import CELLS, OF_PICTURE, MapContract
from detector.release.tensors import Request
from ingest.records import Decoded, Place, PlacesPlan
from ingest.sandbox.crops import Box


@dataclass(frozen=True)
class MapLook:
    """Maps a picture, or the frame of a video that looks most forged, by the release's localizer.

    What is called real is mapped only where it is asked for: a map of it would be empty, or cast doubt on it.
    """

    contract: MapContract
    ask: Ask
    adds: str = "map"
    also_real: bool = False

    def looks_at(self, one: Seen) -> bool:
        """Whether an item is mapped."""
        return self.also_real or one.verdict.label != "real"

    def plan(self, one: Seen) -> PlacesPlan:
        """Return the crops that cover the frame, as many of them as are allowed."""
        verdict, crop_px = one.verdict, self.contract.crop_px
        corners, _ = covering(verdict.width, verdict.height, crop_px)
        frame = _frame(verdict)
        return PlacesPlan(crop_px=crop_px, places=tuple(Place(frame, *corner) for corner in corners))

    def added(self, one: Seen, decoded: Decoded) -> Seen:
        """Return the item with its map. Raises ValueError for a frame of another size than the first."""
        verdict = one.verdict
        corners, part = covering(verdict.width, verdict.height, self.contract.crop_px)
        if corners != tuple(region.box[:2] for region in decoded.regions):
            raise ValueError("the frame is not of the size that the first look saw")
        request: Request = {CROPS: decoded.crops, OF_PICTURE: np.zeros(len(decoded.crops), np.int64)}
        picture = assembled(self.ask(request)[CELLS], corners, part)
        found = forgery_map(picture, self.contract.threshold, decoded.regions[0].frame)
        return replace(one, verdict=verdict.model_copy(update={"map": found}))


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

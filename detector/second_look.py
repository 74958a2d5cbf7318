"""The second look at what is not called real: where is it forged? It only adds to verdicts that stand.

Whatever fails here, want of memory apart, is logged, and the verdict goes out without its map.
"""

import base64
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO

import numpy as np
import structlog
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from detector.cells import CELL_PX
from detector.contract import CROPS
from detector.map_contract import CELLS, OF_PICTURE, MapContract
from detector.maps import PictureMap, assembled, covering
from detector.records import ForgeryMap, Verdict
from detector.tensors import ModelOutput, Request
from detector.torchserve import TorchServeUnavailableError
from ingest.crops import Box
from ingest.records import Decoded, Place, PlacesPlan
from ingest.sandbox import SandboxUnavailableError

log = structlog.get_logger()

Look = Callable[[Callable[[], bytes], PlacesPlan], "Future[Decoded]"]
"""Media and where to look → its crops: `Sandbox.submit`."""
Ask = Callable[[Request], ModelOutput]
"""What the release's localizer says of a request."""


@dataclass(frozen=True)
class Seen:
    """An item after the first look: what is said of it, and its media to decode again."""

    verdict: Verdict
    media: Callable[[], bytes]


def with_maps(
    seen: Sequence[Seen],
    contract: MapContract,
    look: Look,
    ask: Ask,
    *,
    beat: Callable[[], None] = lambda: None,
    also_real: bool = False,
) -> list[Verdict]:
    """Return the items' verdicts in order, each that is not real with its map, or each.

    beat is called before each map is awaited. Where TorchServe or the sandbox cannot answer now, the items
    behind are not asked for: no verdict waits for one who is away.
    """
    looking: dict[int, Future[Decoded]] = {}
    verdicts = [one.verdict for one in seen]
    for place, one in enumerate(seen):
        if also_real or one.verdict.label != "real":
            with _without_a_map(one.verdict):
                looking[place] = look(partial(_unchanged, one), _plan(one.verdict, contract))
    away = False
    for place, crops in looking.items():
        if away:
            crops.cancel()
            continue
        beat()
        with _without_a_map(verdicts[place]) as failed:
            verdicts[place] = _with_map(verdicts[place], crops, contract, ask)
        away = any(isinstance(one, TorchServeUnavailableError | SandboxUnavailableError) for one in failed)
    return verdicts


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


def _with_map(verdict: Verdict, looking: "Future[Decoded]", contract: MapContract, ask: Ask) -> Verdict:
    began = time.perf_counter()
    decoded = looking.result()
    corners, part = covering(verdict.width, verdict.height, contract.crop_px)
    if corners != tuple(region.box[:2] for region in decoded.regions):
        raise ValueError("the frame is not of the size that the first look saw")
    request: Request = {CROPS: decoded.crops, OF_PICTURE: np.zeros(len(decoded.crops), np.int64)}
    picture = assembled(ask(request)[CELLS], corners, part)
    found = forgery_map(picture, contract.threshold, decoded.regions[0].frame)
    timings = verdict.timings.model_copy(update={"map_s": time.perf_counter() - began})
    return verdict.model_copy(update={"map": found, "timings": timings})


@contextmanager
def _without_a_map(verdict: Verdict) -> Iterator[list[Exception]]:
    """Log what fails within; the list that is given then holds it."""
    failed: list[Exception] = []
    try:
        yield failed
    except MemoryError:
        raise
    except Exception as error:
        failed.append(error)
        log.warning(
            "verdict goes out without a map", item=verdict.id, error=f"{type(error).__name__}: {error}"
        )


def _unchanged(one: Seen) -> bytes:
    """Open the media again. Raises ValueError where a claim check's file is another one now."""
    data = one.media()
    if hashlib.sha256(data).hexdigest() != one.verdict.item.digest:
        raise ValueError("the media is not what it was at the first look")
    return data


def _plan(verdict: Verdict, contract: MapContract) -> PlacesPlan:
    corners, _ = covering(verdict.width, verdict.height, contract.crop_px)
    frame = _frame(verdict)
    return PlacesPlan(crop_px=contract.crop_px, places=tuple(Place(frame, *corner) for corner in corners))


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

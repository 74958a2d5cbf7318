"""Pictures of what the memory keeps, encoded here: no byte of a producer's media leaves by them."""

import io
from textwrap import wrap
from typing import Literal

import numpy as np
from fastapi import HTTPException
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from deploy.client.pictures import draw_map, draw_scan
from detector.records import Verdict
from memory.crops.crop_store import Views

View = Literal["pixels", "residual", "map"]

_KV = (-1, 2, -2, 2, -1, 2, -6, 8, -6, 2, -2, 8, -12, 8, -2, 2, -6, 8, -6, 2, -1, 2, -2, 2, -1)
_KV_SCALE = 12
_GAIN = 32
"""A residual of four grey levels is black or white."""
_MAP_PX, _SQUARE_PX = 512, 256
_GREY = 200


def pixels(views: Views, number: int) -> bytes:
    """Return a crop as PNG. Raises HTTPException (404) where the item has no crop of that number."""
    return _png(Image.fromarray(_crop(views, number)))


def residual(views: Views, number: int) -> bytes:
    """Return a crop's high-pass residual as PNG, channel by channel; grey where it is zero.

    The filter is the 5 x 5 "KV" of Fridrich and Kodovský 2012, "Rich models for steganalysis of digital
    images". Raises HTTPException (404) where the item has no crop of that number.
    """
    kernel = ImageFilter.Kernel((5, 5), _KV, scale=_KV_SCALE / _GAIN, offset=128)
    return _png(Image.fromarray(_crop(views, number)).filter(kernel))


def forgery_map(views: Views, verdict: str | None) -> bytes:
    """Return the verdict's map over the whole picture, as PNG; over grey where no picture is kept.

    Raises HTTPException (404) where the verdict has no map.
    """
    said = None if verdict is None else Verdict.model_validate_json(verdict)
    if said is None or said.map is None:
        raise HTTPException(404, "its verdict has no map of where it is forged")
    width, height = _MAP_PX, max(1, round(_MAP_PX * said.height / said.width))
    if views.picture is None:
        whole = Image.new("RGB", (width, height), (_GREY,) * 3)
    else:
        whole = Image.fromarray(views.picture).resize((width, height))
    return _png(draw_map(np.asarray(whole), said.width, said.map))


def timeline(verdict: Verdict) -> bytes:
    """Return what the scan says of each frame of a video as PNG, left to right in time.

    Without the frames, which are not kept. Raises HTTPException (404) where the verdict has no scan.
    """
    if verdict.scan is None:
        raise HTTPException(404, "its verdict has no scan")
    no_frames = [np.full((1, _MAP_PX, 3), 255, np.uint8)]
    return _png(draw_scan(no_frames, verdict.scan, verdict.segments or ()))


def whole(picture: NDArray[np.uint8]) -> bytes:
    """Return a picture, uint8 RGB [H, W, 3], as PNG."""
    return _png(Image.fromarray(picture))


def words(text: str) -> bytes:
    """Return a grey square that says why there is no picture, as PNG."""
    square = Image.new("RGB", (_SQUARE_PX, _SQUARE_PX), (_GREY,) * 3)
    ImageDraw.Draw(square).text((12, 12), "\n".join(wrap(text[:200], 24)), fill=(0, 0, 0), font_size=16)
    return _png(square)


def _crop(views: Views, number: int) -> NDArray[np.uint8]:
    if number >= len(views.crops):
        raise HTTPException(404, f"it has {len(views.crops)} crops, counted from 0")
    crop: NDArray[np.uint8] = views.crops[number]
    return crop


def _png(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()

"""Pictures, encoded here: of what the memory keeps, and of items that both releases scored.

The latter's media is read again by position and decoded in the sandbox. No byte of a producer's media leaves.
"""

import io
import threading
import time
from contextlib import ExitStack, suppress
from textwrap import wrap
from typing import Literal, NamedTuple

import numpy as np
from fastapi import HTTPException
from kafka.errors import KafkaError
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from deploy.client.pictures import draw_map, draw_scan
from detector.records import Verdict
from ingest.records import CropPlan, MediaError, MediaPlan, PicturePlan
from ingest.reread import MediaReader
from ingest.sandbox.sandbox import Sandbox, SandboxUnavailableError
from ingest.settings import IngestSettings
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
    answer = None if verdict is None else Verdict.model_validate_json(verdict)
    if answer is None or answer.map is None:
        raise HTTPException(404, "its verdict has no map of where it is forged")
    width, height = _MAP_PX, max(1, round(_MAP_PX * answer.height / answer.width))
    if views.picture is None:
        whole = Image.new("RGB", (width, height), (_GREY,) * 3)
    else:
        whole = Image.fromarray(views.picture).resize((width, height))
    return _png(draw_map(np.asarray(whole), answer.width, answer.map))


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


_LONGEST_PX = 384
_CROPS = CropPlan(crop_px=32, patches=1, face_patches=0, frames=1)
_WAIT_S = 10.0
"""After a broker that did not answer: a view asks for many pictures."""


class NoPictureError(Exception):
    """The media cannot be shown, and why."""


class _Place(NamedTuple):
    topic: str
    partition: int
    offset: int
    digest: str


class SharedMedia:
    """Reads and decodes one item at a time. A reader and a child are opened for the first one."""

    def __init__(self, ingest: IngestSettings) -> None:
        self._ingest = ingest.model_copy(update={"decode_processes": 1})
        self._one_at_a_time = threading.Lock()
        self._opened = ExitStack()
        self._both: tuple[MediaReader, Sandbox] | None = None
        self._failed: tuple[str, float] = ("", 0.0)

    def close(self) -> None:
        with self._one_at_a_time:
            self._forget()

    def picture(self, item: str, digest: str, longest_px: int = _LONGEST_PX) -> NDArray[np.uint8]:
        """Show the item at an id, its first frame whole, uint8 RGB with sides of at most `longest_px`.

        digest: SHA-256 of its media. Raises NoPictureError.
        """
        try:
            topic, partition, offset = item.rsplit("-", 2)
            place = _Place(topic, int(partition), int(offset), digest)
        except ValueError as error:
            raise NoPictureError("it names no position of a topic") from error
        with self._one_at_a_time:
            why, until_s = self._failed
            if time.monotonic() < until_s:
                raise NoPictureError(why)
            try:
                return self._picture(place, longest_px)
            except (KafkaError, SandboxUnavailableError) as error:
                why = f"cannot be read now: {error}"
                self._failed = why, time.monotonic() + _WAIT_S
                self._forget()
                raise NoPictureError(why) from error
            except MediaError as error:
                raise NoPictureError(f"cannot be decoded: {error}") from error

    def _picture(self, place: _Place, longest_px: int) -> NDArray[np.uint8]:
        if self._both is None:
            sandbox = self._opened.enter_context(Sandbox(self._ingest))
            self._both = self._opened.enter_context(MediaReader(self._ingest)), sandbox
        reader, sandbox = self._both
        media = next(reader.media([place]), None)
        if media is None:
            raise NoPictureError("its topic no longer has it")
        whole = PicturePlan(width_px=longest_px, height_px=longest_px)
        plan = MediaPlan(crops=_CROPS, pictures={"whole": whole})
        decoded = sandbox.submit(media[1], plan).result()
        scale = longest_px / max(decoded.width, decoded.height)
        size = max(1, round(decoded.width * scale)), max(1, round(decoded.height * scale))
        return np.asarray(Image.fromarray(decoded.pictures["whole"][0]).resize(size))

    def _forget(self) -> None:
        self._both = None
        with suppress(KafkaError):
            self._opened.close()

"""Pictures of items that both releases scored: their media is read again by position, and decoded here."""

import threading
import time
from contextlib import ExitStack, suppress
from typing import NamedTuple

import numpy as np
from kafka.errors import KafkaError
from numpy.typing import NDArray
from PIL import Image

from ingest.records import CropPlan, MediaError, MediaPlan, PicturePlan
from ingest.reread import MediaReader
from ingest.sandbox.sandbox import Sandbox, SandboxUnavailableError
from ingest.settings import IngestSettings

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
        """End the child, and leave the broker."""
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
        found = next(reader.media([place]), None)
        if found is None:
            raise NoPictureError("its topic no longer has it")
        plan = MediaPlan(
            crops=_CROPS, pictures={"whole": PicturePlan(width_px=longest_px, height_px=longest_px)}
        )
        decoded = sandbox.submit(found[1], plan).result()
        scale = longest_px / max(decoded.width, decoded.height)
        size = max(1, round(decoded.width * scale)), max(1, round(decoded.height * scale))
        return np.asarray(Image.fromarray(decoded.pictures["whole"][0]).resize(size))

    def _forget(self) -> None:
        self._both = None
        with suppress(KafkaError):
            self._opened.close()

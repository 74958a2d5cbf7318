"""A real video is kept with one crop a frame, as it would be scanned, so that a scanner can learn from it.

The crops that a network learns from are of eight frames alone. What fails here is logged, and the video is
imported without.
"""

import io
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import av
import numpy as np
import structlog
from numpy.typing import NDArray

from detector.release.crop_graphs import MOST_FRAMES
from detector.second_pass.scan_places import most_restless_corner, places_along
from ingest.records import CropPlan, Decoded, PlacesPlan
from ingest.sandbox.sandbox import Sandbox
from memory.features import Floats
from memory.records import REAL

log = structlog.get_logger()

FEWEST_FRAMES = 18
"""a clip that is shorter has no room for a forged and a real stretch, of at least nine frames each"""

_MOST_AHEAD = 8
"""videos that are decoded before they are packed: 5 MB each"""

Measure = Callable[[Sequence[NDArray[np.uint8]]], NDArray[np.float32]]
"""Raw forensic features float32 (n, F) of n items' crops, uint8 RGB (N_i, S, S, 3)."""

_CODER = "libx264rgb"
_OPTIONS = {"qp": "0", "preset": "ultrafast"}
"""without loss; "fast" saves 18 % of the bytes and takes ten times as long"""
_RATE = 25  # frames a second; nothing follows from it


class RealVideo(NamedTuple):
    """A video that a person calls real: its path, bytes, first look, and `measure_features` of that."""

    path: str
    data: bytes
    decoded: Decoded
    rows: NDArray[np.float32]


def is_scanned(family: str, decoded: Decoded) -> bool:
    """Say whether frames of media of a class are kept: of real videos that are not too short."""
    return family == REAL and decoded.kind == "video" and decoded.length >= FEWEST_FRAMES


def measure_features(items: Sequence[Decoded], measure: Measure, scanned: Sequence[bool]) -> list[Floats]:
    """Return raw features of items, float32 (n_i, F), whose mean is the item's: one row, or one a crop.

    One a crop, in the order of the regions, of what is scanned and shows no face: they say where it changes.
    """
    parts = [
        [item.crops[[row]] for region in item.regions for row in region.crops]
        if of_scan and not _has_face(item)
        else [item.crops]
        for item, of_scan in zip(items, scanned, strict=True)
    ]
    if not parts:
        return []
    rows = measure(list(chain(*parts)))
    return np.split(rows, np.cumsum([len(part) for part in parts])[:-1])


def scans(videos: Mapping[str, RealVideo], sandbox: Sandbox, plan: CropPlan) -> dict[str, bytes]:
    """Return the kept frames of videos, by `encode_frames`, by the videos' keys.

    One crop of each of at most 96 frames. A video that fails, or has too few frames, is left out.
    """
    contents: dict[str, bytes] = {}
    looking: deque[tuple[str, Future[Decoded]]] = deque()

    def take() -> None:
        key, future = looking.popleft()
        with _without(videos[key].path):
            crops = future.result().crops
            if len(crops) >= FEWEST_FRAMES:
                contents[key] = encode_frames(crops)

    for key, video in videos.items():
        with _without(video.path):
            looking.append((key, sandbox.submit(video.data, _places(video, plan))))
        if len(looking) > _MOST_AHEAD:
            take()
    while looking:
        take()
    return contents


def _places(video: RealVideo, plan: CropPlan) -> PlacesPlan:
    decoded = video.decoded
    elsewhere = (0, 0) if _has_face(decoded) else most_restless_corner(decoded, video.rows, plan)
    size = decoded.width, decoded.height
    return places_along(decoded.regions, size, decoded.length, elsewhere, plan.crop_px, MOST_FRAMES)


def _has_face(decoded: Decoded) -> bool:
    return any(region.kind == "face" for region in decoded.regions)


@contextmanager
def _without(path: str) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        log.warning("real video imported without its frames", path=path, error=problem)


def encode_frames(frames: NDArray[np.uint8]) -> bytes:
    """Code frames, uint8 RGB [T, S, S, 3], T >= 1. The same frames give the same bytes, by one FFmpeg."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska", options={"fflags": "+bitexact"}) as out:
        stream: Any = out.add_stream(_CODER, rate=_RATE, options=dict(_OPTIONS))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "rgb24"
        stream.codec_context.thread_count = 1
        for picture in frames:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")))
        out.mux(stream.encode(None))
    return buffer.getvalue()


def decode_frames(value: bytes) -> NDArray[np.uint8]:
    """Return the frames that were coded, uint8 RGB [T, S, S, 3]. Raises ValueError where there are none."""
    try:
        with av.open(io.BytesIO(value), "r", format="matroska") as container:
            return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    except (av.FFmpegError, IndexError) as error:
        raise ValueError(f"holds no frames: {error}") from error

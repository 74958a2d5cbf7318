"""Pictures as files: read as the stream reads them, and written as they were."""

import warnings
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, JpegImagePlugin

from ingest.sandbox.decode import DecodeError, image_frames
from updater.distortions.distortion import DistortionError
from updater.filters import Picture

_QUALITY = 95
_JPEG = ("JPEG", "MPO")


@dataclass(frozen=True)
class Still:
    """A picture, uint8 RGB [H, W, 3], and with what a JPEG was coded."""

    pixels: Picture
    coded_with: dict[str, Any] = field(default_factory=dict)


def read_still(path: Path, max_pixels: int) -> Still:
    """Read a picture, upright. Raises DistortionError where it is none, or an animation, and OSError."""
    data = path.read_bytes()
    try:
        (frame,) = image_frames(data, 1, max_pixels)
    except DecodeError as error:
        raise DistortionError(f"{path}: {error}") from error
    if frame.time_s is not None:
        raise DistortionError(f"{path} is an animation: give a picture or a video")
    if frame.format != "JPEG":
        return Still(frame.pixels)
    with warnings.catch_warnings(action="ignore"), Image.open(BytesIO(data), formats=_JPEG) as image:
        sampling = JpegImagePlugin.get_sampling(image)
        tables = getattr(image, "quantization", {})
    # Pillow knows three samplings, and says -1 of any other.
    known = {"subsampling": sampling} if sampling >= 0 else {}
    return Still(frame.pixels, {"qtables": tables, **known})


def write_still(path: Path, pixels: Picture, still: Still) -> None:
    """Write uint8 RGB [H, W, 3] in the format that the name ends with: a JPEG with the tables that it had.

    What is lossy and was coded otherwise gets quality 95. Raises DistortionError for a name of no format.
    """
    form = Image.registered_extensions().get(path.suffix.lower())
    if form is None or form not in Image.SAVE:
        raise DistortionError(
            f"{path.name}: no format of pictures that can be written ends so: choose .png, .jpg or .webp"
        )
    options = (still.coded_with if form == "JPEG" else {}) or {"quality": _QUALITY}
    try:
        Image.fromarray(pixels).save(path, form, **options)
    except (ValueError, KeyError) as error:
        raise DistortionError(f"{path.name} cannot be written as {form}: {error}") from error

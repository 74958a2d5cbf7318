"""Decodes images to 8-bit RGB with Pillow. To be called in a sandboxed child only: media is hostile.

How a picture becomes 8-bit RGB (colour profiles are not applied, they would alter the traces):
  RGB                         as it is; deeper channels keep their upper 8 bits
  1, L                        the grey value in all three channels
  P                           through its palette
  alpha of any kind           composited on white, as most viewers show it
  CMYK, YCbCr, LAB, HSV       Pillow's plain conversion
  I;16 (and I within 0..65535)  the upper 8 of 16 bits, grey
  F within 0..1, 0..255       scaled by 255, as it is; grey
  I, F beyond that            lowest..highest value stretched to 0..255, NaN as 0; grey
EXIF orientation is applied, but to HEIF, which has its own; a damaged EXIF block counts as upright. Of a
TIFF only the first page is read, of a multi-picture JPEG only the first picture, of a HEIF the primary
one, of an icon the largest; GIF, WebP, PNG and AVIF may be animations.
"""

import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from ingest.records import MediaError

DecodeReason = Literal[
    "empty",
    "too_large",
    "unknown_format",
    "corrupt",
    "too_many_pixels",
    "timeout",
    "out_of_memory",
    "crashed",
]


class DecodeError(MediaError):
    """Bytes that give no picture within the limits."""

    reason: DecodeReason

    def __init__(self, reason: DecodeReason, message: str) -> None:
        super().__init__(reason, message)


@dataclass(frozen=True)
class Frame:
    """One picture: uint8 RGB (height, width, 3), upright.

    index counts the media's own frames from 0; time_s is when it is shown, in seconds, None for a
    still image; format is the container's name.
    """

    format: str
    index: int
    time_s: float | None
    pixels: NDArray[np.uint8]
    length: int = 1
    """how many frames the container holds"""
    decoded: int = 1
    """how many were decoded since the one before, this one among them"""


class ImageFormat(NamedTuple):
    """What is particular to one of Pillow's formats."""

    signatures: tuple[bytes, ...] = ()
    """How a file begins, where that tells a damaged one from another format."""
    brands: tuple[bytes, ...] = ()
    """The major brands of an ISO base media file that is such an image, and no video."""
    may_be_animated: bool = False
    is_turned_by_exif: bool = True


FORMATS = {
    "JPEG": ImageFormat((b"\xff\xd8\xff",)),
    "PNG": ImageFormat((b"\x89PNG\r\n\x1a\n",), may_be_animated=True),
    "WEBP": ImageFormat(may_be_animated=True),
    "GIF": ImageFormat((b"GIF8",), may_be_animated=True),
    "TIFF": ImageFormat((b"II*\0", b"MM\0*")),
    "BMP": ImageFormat((b"BM",)),
    "AVIF": ImageFormat(brands=(b"avif", b"avis"), may_be_animated=True),
    # Turned by its own properties irot and imir (ISO/IEC 23008-12); what its EXIF says is for information.
    "HEIF": ImageFormat(
        brands=(b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"),
        is_turned_by_exif=False,
    ),
    "PPM": ImageFormat((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6")),
    "ICO": ImageFormat((b"\0\0\1\0",)),
}
"""The images that are decoded, by Pillow's names. To add one of Pillow's is to add a line."""

_SIGNATURES = tuple(signature for image_format in FORMATS.values() for signature in image_format.signatures)
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


Wanted = int | Collection[int]
"""Frames: at most so many at a uniform step, or those of these numbers."""


RGB_BYTES = 3
_BYTES = {**dict.fromkeys(("RGBA", "RGBa", "LA", "La", "PA", "CMYK", "LAB"), 4), "I": 6, "F": 6}
"""What a pixel of Pillow's mode takes on its way to RGB, where that is more than RGB itself."""


def check_bytes(width: int, height: int, pixel_bytes: float, max_pixels: int) -> None:
    """Hold a picture to the limit of pixels; those that take more bytes than RGB's three count for more.

    Raises DecodeError.
    """
    most = int(max_pixels * min(1.0, RGB_BYTES / pixel_bytes))
    if width * height > most:
        deep = "" if most == max_pixels else f" of {pixel_bytes:g} bytes each"
        raise DecodeError("too_many_pixels", f"{width} x {height} px{deep}; the limit is {most} in all")


def sample(total: int, most: int) -> tuple[int, ...]:
    """Choose at most `most` of `total` frames at a uniform step: the middles of equal spans."""
    count = max(1, min(total, most))
    return tuple((2 * index + 1) * total // (2 * count) for index in range(count))


def chosen(total: int, frames: Wanted) -> tuple[int, ...]:
    """Choose frames of `total`; of numbers beyond the last frame that one stands for all."""
    if isinstance(frames, int):
        return sample(total, frames)
    return tuple(sorted({min(number, total - 1) for number in frames}))


def image_frames(
    data: bytes, frames: Wanted, max_pixels: int, most_decoded: int | None = None
) -> Iterator[Frame]:
    """Decode an image, or an animation's frames, of which each but the first needs those before it.

    most_decoded: frames behind so many are left out.

    Raises DecodeError: unknown_format, too_many_pixels (a frame beyond max_pixels, seen before it is
    decoded), out_of_memory, or corrupt, for whatever else the decoder raises.
    """
    others_limit = Image.MAX_IMAGE_PIXELS
    try:
        with warnings.catch_warnings():
            # Pillow only warns up to twice its limit; and it looks at extents that `size` does not show.
            Image.MAX_IMAGE_PIXELS = max_pixels
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield from _frames(data, frames, max_pixels, most_decoded)
    except DecodeError:
        raise
    except UnidentifiedImageError as error:
        if data.startswith(_SIGNATURES):
            raise DecodeError("corrupt", "begins like an image, but its header is damaged") from error
        raise DecodeError("unknown_format", f"no image of {', '.join(FORMATS)}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError("too_many_pixels", str(error)) from error
    except MemoryError as error:
        raise DecodeError("out_of_memory", "the image does not fit the memory limit") from error
    # Seen on damaged files: OSError, ValueError, SyntaxError, RuntimeError, struct.error, KeyError, ...
    except Exception as error:
        raise DecodeError("corrupt", f"{type(error).__name__}: {error}") from error
    finally:
        Image.MAX_IMAGE_PIXELS = others_limit


@cache
def _register_heif() -> None:
    # Not in a parent, which decodes nothing.
    import pi_heif

    pi_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)


def _frames(data: bytes, frames: Wanted, max_pixels: int, most_decoded: int | None) -> Iterator[Frame]:
    _register_heif()
    with Image.open(BytesIO(data), formats=tuple(FORMATS)) as image:
        _check_size(image, max_pixels)
        # A multi-picture JPEG calls itself MPO.
        name = "JPEG" if image.format == "MPO" else str(image.format)
        total = getattr(image, "n_frames", 1) if FORMATS[name].may_be_animated else 1
        wanted = [number for number in chosen(total, frames) if number < (most_decoded or total)]
        elapsed_ms, before = 0.0, -1
        # Every frame up to the last chosen one is visited, since each says only its own duration.
        for index in range(wanted[-1] + 1 if wanted else 0):
            if index:
                image.seek(index)
                _check_size(image, max_pixels)
            if index in wanted:
                upright = _upright(image, turn=FORMATS[name].is_turned_by_exif)
                # An icon's directory and a HEIF's header may say less than what is in there.
                _check_size(upright, max_pixels)
                pixels = np.asarray(upright)
                shown_ms = image.info.get("timestamp", elapsed_ms)
                time_s = None if total == 1 else float(shown_ms) / 1000
                yield Frame(name, index, time_s, pixels, total, index - before)
                before = index
            elapsed_ms += float(image.info.get("duration", 0))


def _check_size(image: Image.Image, max_pixels: int) -> None:
    is_layer = "transparency" in image.info
    check_bytes(image.width, image.height, _BYTES.get(image.mode, 4 if is_layer else RGB_BYTES), max_pixels)
    if image.width < 1 or image.height < 1:
        raise DecodeError("corrupt", f"{image.width} x {image.height} px")


def _upright(image: Image.Image, *, turn: bool) -> Image.Image:
    image.load()
    # After load: Pillow itself turns a TIFF there, and then forgets its orientation.
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # EXIF parsers fail in as many ways as there are cameras; the picture is still good
        orientation = None
    rgb = to_rgb(image)
    turning = _TURNS.get(orientation) if turn and isinstance(orientation, int) else None
    return rgb if turning is None else rgb.transpose(turning)


def to_rgb(image: Image.Image) -> Image.Image:
    """Bring any of Pillow's modes to 8-bit RGB, in the way that the module's docstring says."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_grey(np.asarray(image))).convert("RGB")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _grey(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    if values.dtype.kind in "iu" and values.size and values.min() >= 0 and values.max() <= 65_535:
        return (values.astype(np.uint16) >> 8).astype(np.uint8)
    # A few rows at a time: as float64 the whole would be twice as large again, several times.
    rows = [slice(top, top + _ROWS) for top in range(0, len(values), _ROWS)]
    low = min(float(_finite(values[part]).min()) for part in rows)
    high = max(float(_finite(values[part]).max()) for part in rows)
    grey = np.zeros(values.shape, np.uint8)
    for part in rows:
        real = _finite(values[part])
        if low >= 0 and high <= 1:
            real = real * 255
        elif not (low >= 0 and high <= 255):
            real = (real - low) * (255 / (high - low)) if high > low else np.zeros_like(real)
        grey[part] = np.round(real)
    return grey


_ROWS = 256


def _finite(values: NDArray[np.generic]) -> NDArray[np.float64]:
    ceiling = float(np.finfo(np.float32).max)
    return np.nan_to_num(values.astype(np.float64), posinf=ceiling, neginf=-ceiling)

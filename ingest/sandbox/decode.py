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
EXIF orientation is applied, but to HEIF, which has its own; a damaged EXIF block counts as upright. Of
several pictures the one that viewers show is read, the others are counted: a TIFF's first page that is no
smaller copy, a multi-picture JPEG's first, a HEIF's or AVIF's primary, an icon's largest. GIF, WebP, PNG and
AVIF may be animations. A cut file is read as far as it goes.
"""

import re
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from ingest.records import MediaError
from ingest.sandbox import containers

_Limit = Literal["too_large", "too_many_pixels", "timeout", "out_of_memory"]
DecodeReason = Literal["empty", "unknown_format", "corrupt", "crashed", _Limit]


class DecodeError(MediaError):
    """Bytes that give no picture within the limits."""

    reason: DecodeReason

    def __init__(self, reason: DecodeReason, message: str) -> None:
        super().__init__(reason, message)


@dataclass(frozen=True)
class Frame:
    """One picture: uint8 RGB (height, width, 3), upright.

    index counts the media's frames from 0; time_s: seconds, None for a still image; format: the container's.
    """

    format: str
    index: int
    time_s: float | None
    pixels: NDArray[np.uint8]
    length: int = 1
    """how many frames the container holds"""
    decoded: int = 1
    """how many were decoded since the one before, this one among them"""


@dataclass
class Gaps:
    """The parts of a file that are not judged, counted while its frames are decoded.

    others: further pictures, pages or picture tracks that a viewer could show; no thumbnails. incomplete: the
    file is cut or damaged, and read as far as it goes.
    """

    others: int = 0
    incomplete: bool = False


class ImageFormat(NamedTuple):
    """The particulars of one of Pillow's formats."""

    signatures: tuple[bytes, ...] = ()
    """How a file begins, where that tells a damaged one from another format."""
    may_be_animated: bool = False
    is_turned_by_exif: bool = True
    pixel_bytes: float = 3
    """What a pixel counts for at least: more than RGB's three where the decoder keeps pictures of its own."""


FORMATS = {
    "JPEG": ImageFormat((b"\xff\xd8\xff",)),
    "PNG": ImageFormat((b"\x89PNG\r\n\x1a\n",), may_be_animated=True),
    "WEBP": ImageFormat(may_be_animated=True, pixel_bytes=7),
    "GIF": ImageFormat((b"GIF8",), may_be_animated=True),
    "TIFF": ImageFormat((b"II*\0", b"MM\0*")),
    "BMP": ImageFormat((b"BM",)),
    "AVIF": ImageFormat(may_be_animated=True, pixel_bytes=5),
    # Turned by its own properties irot and imir (ISO/IEC 23008-12); what its EXIF says is for information.
    "HEIF": ImageFormat(is_turned_by_exif=False),
    "PPM": ImageFormat((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6")),
    "ICO": ImageFormat((b"\0\0\1\0",)),
}
"""The images that are decoded, by Pillow's names. To add one of Pillow's is to add a line."""

_FINAL = (DecodeError, MemoryError, Image.DecompressionBombError, Image.DecompressionBombWarning)
_READ_AS_FAR_AS_THEY_GO = (b"\x89PNG", b"GIF8", *FORMATS["TIFF"].signatures)
# Behind the last whole segment, as often as the longest one swallows it.
_JPEG_END = b"\xff\xd9" * 33_000
_LEAST_ROWS = 8
_MOST_HEVC_BYTES = 2**24  # libde265 reads no longer unit, and says so in no words
_SIGNATURES = tuple(signature for image_format in FORMATS.values() for signature in image_format.signatures)
# By the orientation: how often a picture is turned by a quarter, counter-clockwise, once it is mirrored.
_TURNS = {2: (0, True), 3: (2, False), 4: (2, True), 5: (1, True), 6: (3, False), 7: (3, True), 8: (1, False)}

Indices = int | Collection[int]
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


def choose(total: int, frames: Indices) -> tuple[int, ...]:
    """Choose frames of `total`; of numbers beyond the last frame that one stands for all."""
    if isinstance(frames, int):
        return sample(total, frames)
    return tuple(sorted({min(number, total - 1) for number in frames}))


def image_frames(
    data: bytes, frames: Indices, max_pixels: int, most_decoded: int | None = None, gaps: Gaps | None = None
) -> Iterator[Frame]:
    """Decode an image, or an animation's frames, of which each but the first needs those before it.

    most_decoded: frames behind so many are left out. gaps is told what is not looked at.

    Raises DecodeError: unknown_format, too_many_pixels (a frame beyond max_pixels, seen before it is
    decoded), out_of_memory, or corrupt, for whatever else the decoder raises.
    """
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    try:
        with warnings.catch_warnings():
            # Pillow only warns up to twice its limit; and it looks at extents that `size` does not show.
            Image.MAX_IMAGE_PIXELS = max_pixels
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield from _frames(data, frames, max_pixels, most_decoded, gaps or Gaps())
    except DecodeError:
        raise
    except UnidentifiedImageError as error:
        is_still = data[4:8] == b"ftyp" and data[8:12] != b"crx "
        if is_still or data[8:12] == b"WEBP" or data.startswith(_SIGNATURES):
            why = "is cut" if containers.ends_early(data) else "has a damaged header"
            raise DecodeError("corrupt", f"begins like an image, but {why}") from error
        raise DecodeError("unknown_format", containers.looks_like(data)) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        size = re.search(r"\d+", str(error))
        many = f"{size[0] if size else 'more'} px; the limit is {max_pixels}: send a smaller copy"
        raise DecodeError("too_many_pixels", many) from error
    # Seen on damaged files: OSError, ValueError, SyntaxError, RuntimeError, struct.error, KeyError, ...
    except Exception as error:
        # Libraries of C say it in words.
        if isinstance(error, MemoryError) or re.search("memory|alloc", str(error), re.IGNORECASE):
            large = "the image, or the text in its file, does not fit the memory limit: send a smaller copy"
            raise DecodeError("out_of_memory", large) from error
        if "decompressed image" in str(error) and len(data) > _MOST_HEVC_BYTES:
            raise DecodeError(
                "too_large", "no HEVC picture of over 16 MiB is read: send it as JPEG"
            ) from error
        cut = "the file is cut: " if containers.ends_early(data) else ""
        raise DecodeError("corrupt", f"{cut}the image cannot be decoded: {error}") from error
    finally:
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = before


@cache
def register_heif() -> None:
    # Not in a parent, which decodes nothing.
    import pi_heif

    # The child has limits of its own. This library counts what it holds in all, over one file after another.
    pi_heif.options.DISABLE_SECURITY_LIMITS = True
    pi_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)


def _frames(
    data: bytes, frames: Indices, max_pixels: int, most_decoded: int | None, gaps: Gaps
) -> Iterator[Frame]:
    """Choose the picture that is shown, and read what is cut as far as it goes."""
    register_heif()
    if data.startswith((*FORMATS["TIFF"].signatures, b"II+\0", b"MM\0+")):
        pages = containers.pages(data)
        if any(page.is_raw for page in pages):
            raise DecodeError("unknown_format", f"a camera's raw file is not judged: {containers.RAW}")
        whole = [page for page in pages if not page.is_part]
        gaps.others = max(0, len(whole) - 1)
        data = containers.at_page(data, whole[0]) if whole else data
    elif data[4:8] == b"ftyp":
        gaps.others = containers.further_pictures(data)
        data = containers.with_known_brand(data)
    elif data.startswith(FORMATS["JPEG"].signatures) and containers.jpeg_is_cut(data):
        gaps.incomplete = True
        data += _JPEG_END
    elif data[:4] == b"RIFF" and containers.ends_early(data):
        gaps.incomplete = True
        data = containers.whole_chunks(data)
    try:
        yield from _decode_frames(data, frames, max_pixels, most_decoded, gaps)
    except (*_FINAL, UnidentifiedImageError):
        raise
    except Exception:
        if gaps.incomplete or not data.startswith(_READ_AS_FAR_AS_THEY_GO):
            raise
        gaps.incomplete = ImageFile.LOAD_TRUNCATED_IMAGES = True
        yield from _decode_frames(data, frames, max_pixels, most_decoded, gaps)


def _decode_frames(
    data: bytes,
    frames: Indices,
    max_pixels: int,
    most_decoded: int | None,
    gaps: Gaps,
    length: int | None = None,
) -> Iterator[Frame]:
    with Image.open(BytesIO(data), formats=tuple(FORMATS)) as image:
        # A multi-picture JPEG calls itself MPO.
        name = "JPEG" if image.format == "MPO" else str(image.format)
        try:
            total = length or int(getattr(image, "n_frames", 1) if FORMATS[name].may_be_animated else 1)
        except Exception:  # a GIF whose frames cannot be counted: how far that came
            gaps.incomplete, total = True, image.tell() + 1
            image.seek(0)
        _check_size(image, max_pixels, total)
        if name in ("JPEG", "ICO"):
            gaps.others = len(image.info.get("sizes", ())) or getattr(image, "n_frames", 1)
            gaps.others -= 1
        wanted = [number for number in choose(total, frames) if number < (most_decoded or total)]
        if getattr(image, "default_image", False) and isinstance(frames, int):
            wanted[:1] = [0]  # which viewers show that know no animated PNG
        elapsed_ms, before = 0.0, -1
        # Every frame up to the last chosen one is visited, since each says only its own duration.
        for index in range(wanted[-1] + 1 if wanted else 0):
            try:
                if index:
                    image.seek(index)
                    _check_size(image, max_pixels, total)
                if name == "HEIF" and image.mode == "RGB":
                    pixels = _heif_pixels(data, max_pixels)
                elif index in wanted:
                    image.load()
                    # An icon's directory and a HEIF's header may say less than what is in there.
                    _check_size(image, max_pixels, total)
            except _FINAL:
                raise
            except Exception:
                if not index:
                    raise
                # Of an animation that is cut or damaged, the frames before that are the animation.
                gaps.incomplete = True
                if before < 0:
                    yield from _decode_frames(data, frames, max_pixels, most_decoded, gaps, index)
                return
            if index in wanted:
                if not (name == "HEIF" and image.mode == "RGB"):
                    cut = gaps.incomplete and total == 1
                    pixels = _upright(image, turn=FORMATS[name].is_turned_by_exif, cut=cut)
                if index == wanted[-1]:
                    image.close()  # or it were held beside its pixels while these are looked at
                shown_ms = image.info.get("timestamp", elapsed_ms)
                time_s = None if total == 1 else float(shown_ms) / 1000
                yield Frame(name, index, time_s, pixels, total, index - before)
                before = index
            elapsed_ms += float(image.info.get("duration", 0))


def _heif_pixels(data: bytes, max_pixels: int) -> NDArray[np.uint8]:
    """Decode the primary picture, RGB, without Pillow's copy of it, which takes four bytes a pixel."""
    import pi_heif

    # Rows of 10 bits are made 8-bit here: libheif takes 605 MB of 48 megapixels for that, not 461.
    file = pi_heif.open_heif(data, convert_hdr_to_8bit=False)
    picture = file[file.primary_index]
    rows, (width, height) = picture.data, picture.size
    check_bytes(width, height, RGB_BYTES, max_pixels)
    depth = 2 if picture.mode.endswith("16") else 1
    pixels = np.ndarray((height, width, 3), f"u{depth}", rows, strides=(picture.stride, 3 * depth, depth))
    copy = np.empty(pixels.shape, np.uint8)  # the rows are gone with the picture
    return np.asarray(np.right_shift(pixels, 8 * (depth - 1), out=copy, casting="unsafe"), np.uint8)


def _check_size(image: Image.Image, max_pixels: int, frames: int) -> None:
    of_mode = _BYTES.get(image.mode, 4 if "transparency" in image.info else RGB_BYTES)
    image_format = FORMATS.get(str(image.format))
    of_format = image_format.pixel_bytes if image_format else RGB_BYTES
    # The frame before is kept, and of an animation no picture is let go before the last.
    kept = 2 if frames > 1 else 0
    check_bytes(image.width, image.height, max(of_mode, of_format) + kept, max_pixels)
    if image.width < 1 or image.height < 1:
        raise DecodeError("corrupt", f"{image.width} x {image.height} px")


def _upright(image: Image.Image, *, turn: bool, cut: bool) -> NDArray[np.uint8]:
    # After load: Pillow itself turns a TIFF there, and then forgets its orientation.
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # EXIF parsers fail in as many ways as there are cameras; the picture is still good
        orientation = None
    pixels = _rgb_pixels(image)
    rows = len(pixels)
    # What is missing of a cut picture, its decoder fills with one colour.
    while cut and rows and (pixels[rows - 1] == pixels[-1, -1]).all():
        rows -= 1
    if cut and rows < _LEAST_ROWS:
        raise DecodeError("corrupt", "the file is cut before its picture")
    pixels = pixels[:rows]
    if not (turn and isinstance(orientation, int) and orientation in _TURNS):
        return pixels
    quarters, mirrored = _TURNS[orientation]
    return np.ascontiguousarray(np.rot90(pixels[:, ::-1] if mirrored else pixels, quarters))


def _rgb_pixels(image: Image.Image) -> NDArray[np.uint8]:
    """Bring a picture to RGB, a part at a time: as a whole there were several copies at once."""
    grey = _grey(image) if _is_deep(image) else None
    width, height = image.size
    columns = min(width, _PART_PX)
    rows = _PART_PX // columns
    pixels = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, rows):
        for left in range(0, width, columns):
            right, bottom = min(left + columns, width), min(top + rows, height)
            part = pixels[top:bottom, left:right]
            if grey is None:
                part[:] = np.asarray(to_rgb(image.crop((left, top, right, bottom))))
            else:
                part[:] = grey[top:bottom, left:right, None]
    return pixels


def to_rgb(image: Image.Image) -> Image.Image:
    """Bring any of Pillow's modes to 8-bit RGB, in the way that the module's docstring says."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if _is_deep(image):
        return Image.fromarray(_grey(image)).convert("RGB")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _is_deep(image: Image.Image) -> bool:
    return image.mode.startswith("I") or image.mode == "F"


def _grey(image: Image.Image) -> NDArray[np.uint8]:
    # A few rows at a time: as float64 the whole would be twice as large again, several times.
    width, height = image.size
    rows = max(1, _PART_PX // width)

    def parts() -> Iterator[tuple[int, NDArray[np.generic]]]:
        for top in range(0, height, rows):
            yield top, np.asarray(image.crop((0, top, width, min(top + rows, height))))

    kind = next(parts())[1].dtype.kind
    low = min(float(_finite(values).min()) for _, values in parts())
    high = max(float(_finite(values).max()) for _, values in parts())
    grey = np.empty((height, width), np.uint8)
    for top, values in parts():
        real = _finite(values)
        if kind in "iu" and low >= 0 and high <= 65_535:
            real = np.floor(real / 256)
        elif low >= 0 and high <= 1:
            real = real * 255
        elif not (low >= 0 and high <= 255):
            real = (real - low) * (255 / (high - low)) if high > low else np.zeros_like(real)
        grey[top : top + len(values)] = np.round(real)
    return grey


_PART_PX = 500_000


def _finite(values: NDArray[np.generic]) -> NDArray[np.float64]:
    ceiling = float(np.finfo(np.float32).max)
    return np.nan_to_num(values.astype(np.float64), posinf=ceiling, neginf=-ceiling)

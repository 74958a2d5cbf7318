"""Which copies of a picture join its group by their hashes, and how many pairs of different pictures do."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ingest.picture_hash import HASH_BYTES, INSETS, mirror_hashes, picture_hashes
from ingest.sandbox.decode import DecodeError, image_frames
from ingest.settings import IngestSettings
from memory.index.picture_index import NEAR_BITS, PictureIndex
from updater.progress import Progress


@dataclass(frozen=True)
class Shares:
    """What was found in a folder of pictures; other files in it are left out.

    copies: of each kind, how many joined their original among all pictures. flat: pictures without a hash,
    whose copies join nothing. joined: of the pairs of two files, those that would share a group.
    """

    pictures: int
    flat: int
    copies: dict[str, int]
    pairs: int
    joined: int


def _saved(container: str, quality: int) -> Callable[[Image.Image], Image.Image]:
    def again(picture: Image.Image) -> Image.Image:
        file = BytesIO()
        picture.save(file, container, quality=quality)
        return Image.open(file, formats=(container,)).convert("RGB")

    return again


def _resized(scale: float) -> Callable[[Image.Image], Image.Image]:
    return lambda picture: picture.resize([max(1, round(scale * side)) for side in picture.size])


def _trimmed(share: float) -> Callable[[Image.Image], Image.Image]:
    return lambda picture: ImageOps.crop(
        picture, (round(share * picture.width), round(share * picture.height))
    )


def _corner(share: float) -> Callable[[Image.Image], Image.Image]:
    return lambda picture: picture.crop(
        (round(share * picture.width), round(share * picture.height), *picture.size)
    )


COPIES: Mapping[str, Callable[[Image.Image], Image.Image]] = {
    **{f"JPEG q{quality}": _saved("JPEG", quality) for quality in (95, 85, 70)},
    "WebP q80": _saved("WEBP", 80),
    **{f"resized x{scale:g}": _resized(scale) for scale in (0.5, 0.75, 1.5, 2)},
    "mirrored": ImageOps.mirror,
    "trimmed by 3 px at each side": lambda picture: ImageOps.crop(picture, 3),
    "trimmed by 3 px at one corner": lambda picture: ImageOps.crop(picture, (3, 3, 0, 0)),
    "trimmed by 2 % at each side": _trimmed(0.02),
    "trimmed by 5 % at each side": _trimmed(0.05),
    "trimmed by 2 % at one corner": _corner(0.02),
    "trimmed by 5 % at one corner": _corner(0.05),
    "mirrored, resized x0.7, trimmed by 3 px, JPEG q70": lambda picture: _saved("JPEG", 70)(
        _resized(0.7)(ImageOps.mirror(ImageOps.crop(picture, 3)))
    ),
}


def measure(folder: Path, progress: Progress) -> Shares:
    """Make every copy of every picture below a folder, which is trusted: no sandbox is between.

    The same bytes count once. Raises OSError.
    """
    files = sorted({path.read_bytes(): path for path in sorted(folder.rglob("*")) if path.is_file()}.items())
    hashes: list[bytes] = []
    asked: dict[str, list[bytes]] = {name: [] for name in COPIES}
    for done, (data, _) in enumerate(files, 1):
        try:
            (frame,) = image_frames(data, 1, IngestSettings().max_pixels)
        except DecodeError:
            continue
        picture = Image.fromarray(frame.pixels)
        hashes.append(picture_hashes(frame.pixels))
        for name, copy in COPIES.items():
            asked[name].append(picture_hashes(np.asarray(copy(picture))))
        progress("pictures", done, len(files))
    index = PictureIndex()
    index.add(hashes, range(len(hashes)))
    own = [each for each in hashes if each]
    return Shares(
        pictures=len(hashes),
        flat=len(hashes) - len(own),
        copies={name: _joined(index, hashes, copies) for name, copies in asked.items()},
        pairs=len(own) * (len(own) - 1) // 2,
        joined=pairs_joined(own),
    )


def _joined(index: PictureIndex, hashes: Sequence[bytes], copies: Sequence[bytes]) -> int:
    """Count copies that join their original, or a picture that the original itself joins."""
    found = [index.nearest(each) for each in copies]
    return sum(
        place == number or (place is not None and pairs_joined([hashes[place], hashes[number]]) == 1)
        for number, place in enumerate(found)
    )


def pairs_joined(hashes: Sequence[bytes]) -> int:
    """Count the pairs of pictures that are near, by plain arithmetic; each has its hashes."""
    if not all(hashes):
        return 0
    codes = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, len(INSETS), HASH_BYTES)
    return sum(_near(codes[number], codes[number + 1 :]) for number in range(len(codes) - 1))


def _near(picture: NDArray[np.uint8], others: NDArray[np.uint8]) -> int:
    asked = np.concatenate([picture, mirror_hashes(picture)])
    apart = np.bitwise_count(asked[:, None, None] ^ others).sum(-1, dtype=np.int64)
    return int((apart.min((0, 2)) <= NEAR_BITS).sum())


def shares_json(folder: Path, shares: Shares) -> str:
    """Return the shares, and what they are of."""
    found: dict[str, Any] = {"benchmark": "near-duplicates", "folder": folder.name, **asdict(shares)}
    return json.dumps(found, indent=1) + "\n"

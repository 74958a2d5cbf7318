"""The synthetic stream's pictures and clips, forged in part, as trees in ForgeryNet's layout.

Families stand for approaches: 1 to 4 for those that replace an identity, 5 to 8 for those that leave it.
Reals are photographs (16) and media by three groups of cameras (17 to 19). The splits of the stream are
Training, Validation and Test. `updater.data.layouts.forgerynet` reads the trees back, under the names of the
approaches. It drops the stretches of directories 2 and 8 only where these are forged throughout, which no
clip here is.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from PIL import Image

from updater.benchmark.synthetic import DIRECTORIES
from updater.benchmark.synthetic.in_part import ClipSample, LocalSample, make_clip, make_local, numbers_of
from updater.benchmark.synthetic.stream import REAL
from updater.data.layouts.forgerynet import Medium, classes_of

# Split of the stream → part; where its pictures begin, where their truth does, and where its videos do.
_PARTS = {
    "train": ("Training", "train_release", "spatial_localize/train_mask_release", "train_video_release"),
    "stream": ("Validation", "val_perturb_release", "spatial_localize", "val_video_release"),
    "after": ("Test", "test_release", "spatial_localize/test_mask_release", "test_video_release"),
}
PICTURES: dict[str, int] = {"train": 2000, "stream": 300, "after": 300}
VIDEOS: dict[str, int] = {"train": 240, "stream": 64, "after": 96}
_REAL_SHARE = 0.3
"""of pictures; of videos it is half"""
_PHOTOGRAPHS, _FIRST_CAMERAS, _CAMERAS_OF_A_GROUP = 16, 17, 3


def write_forgerynet(
    folder: Path,
    medium: Medium,
    seed: int = 0,
    counts: Mapping[str, int] | None = None,
    *,
    progress: Callable[[int, int], None] = lambda made, total: None,
) -> None:
    """Write `counts[split]` media of each split below a folder.

    Three in ten pictures are real, and half of the videos; the others are of all families alike.
    """
    pictures, done = medium == "image", 0
    counts = counts or (PICTURES if pictures else VIDEOS)
    for split, count in counts.items():
        lines = []
        for numbers in numbers_of(count, round(_REAL_SHARE * count) if pictures else count - count // 2):
            if pictures:
                lines.append(_write_picture(folder, split, make_local(seed, split, *numbers)))
            else:
                lines.append(_write_clip(folder, split, make_clip(seed, split, *numbers)))
            progress(done := done + 1, sum(counts.values()))
        (folder / _PARTS[split][0] / f"{medium}_list.txt").write_text("".join(lines))


def directory_of(family: str, camera: int | None) -> int:
    """Return the directory of a medium: of its family, or of a real one of the camera that took it.

    camera: its number in CAMERAS; None of a photograph. Raises KeyError for an unknown family.
    """
    if family != REAL:
        return DIRECTORIES[family]
    return _PHOTOGRAPHS if camera is None else _FIRST_CAMERAS + camera // _CAMERAS_OF_A_GROUP


def _write_picture(folder: Path, split: str, sample: LocalSample) -> str:
    """Write one picture and its truth; return its line of the list."""
    part, top, masks, _ = _PARTS[split]
    number, inside = _place(sample)
    inside /= sample.name
    _put(folder / part / "image" / top / inside, sample.data)
    if sample.family != REAL:
        truth = (folder / part / masks / inside).with_suffix(".png")
        truth.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(sample.mask).save(truth)
    return f"{top}/{inside} {' '.join(map(str, classes_of(number)))}\n"


def _write_clip(folder: Path, split: str, sample: ClipSample) -> str:
    """Write one clip; return its line of the list."""
    part, _, _, top = _PARTS[split]
    number, inside = _place(sample)
    listed = top / inside / "video.mp4"
    _put(folder / part / "video" / listed, sample.data)
    stretches, at = list[tuple[int, int, int]](), 0  # START, COUNT, FLAG, from the first frame to the last
    for first, end in (*sample.segments, (sample.frames, sample.frames)):
        stretches += [of for of in ((at, first - at, 0), (first, end - first, 1)) if of[1]]
        at = end
    text = " ".join(str(value) for stretch in stretches for value in stretch)
    return f"{len(stretches)} {listed} {text} {' '.join(map(str, classes_of(number)))}\n"


def _place(sample: LocalSample | ClipSample) -> tuple[int, PurePosixPath]:
    """Return a sample's directory, and the folder of its own: media of one group lie side by side."""
    number = directory_of(sample.family, sample.camera)
    # By groups, which the reader takes the first hash for.
    group = hashlib.sha256(sample.group.encode()).hexdigest()[:32]
    return number, PurePosixPath(str(number), group, hashlib.sha256(sample.data).hexdigest()[:32])


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)

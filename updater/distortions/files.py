"""Distortions of files: pictures, and videos of which each step is stored again as the data set's were.

A video's step reads what the step before wrote, distorts its frames and stores them by the codec that they
came in (`updater/distortions/media/writing.py`; H.264 at rate factor 23), the sound copied. A step that is
H.264 itself codes the frames as they were decoded, with no detour over RGB. Through XVID, as DeeperForensics
did it, every other step goes through MPEG-4 part 2 in an AVI first, whose frames are then handed on to H.264;
its sound is lost.
"""

import shutil
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ingest.sandbox.video import demuxer
from updater.distortions.apply import distort, seeds_of
from updater.distortions.distortion import DistortionError, Step
from updater.distortions.media.clip import BROKEN, Clip
from updater.distortions.media.rgb import pieces, to_frame, to_plain_frame, to_rgb
from updater.distortions.media.writing import (
    CONTAINERS,
    STORED_AS,
    USUAL_RATE_FACTOR,
    h264,
    write_clip,
)
from updater.distortions.methods import DISTORTIONS
from updater.distortions.stills import read_still, write_still
from updater.filters import Picture

_HEAD_BYTES = 64


def generator_of(seed: int, name: str) -> np.random.Generator:
    """The draws of one file, by its name below its folder: the same whichever other files there are."""
    return np.random.default_rng([seed, *sha256(name.encode("utf-8", "surrogateescape")).digest()])


def distort_file(
    source: Path,
    target: Path,
    steps: Sequence[Step],
    rng: np.random.Generator,
    *,
    via_xvid: bool,
    max_pixels: int,
) -> None:
    """Write a picture or a video anew, distorted by the steps in order; without any, its bytes are copied.

    The target is whole or not there. Raises DistortionError or ClipError, which name the file, and OSError.
    """
    with source.open("rb") as file:
        is_video = demuxer(file.read(_HEAD_BYTES)) is not None
    if is_video and target.suffix.lower() not in CONTAINERS:
        raise DistortionError(f"{target}: a video's file ends with {', '.join(CONTAINERS)}")
    if via_xvid and not is_video:
        raise DistortionError(f"{source} is no video, so it cannot go through XVID")
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=".distort-") as folder:
        made = Path(folder) / target.name
        if not steps:
            shutil.copyfile(source, made)
        elif is_video:
            _distort_video(source, made, steps, rng, via_xvid, max_pixels)
        else:
            still = read_still(source, max_pixels)
            write_still(made, _distort_still(source, still.pixels, steps, rng), still)
        made.replace(target)


def _distort_still(source: Path, pixels: Picture, steps: Sequence[Step], rng: np.random.Generator) -> Picture:
    try:
        distorted = distort(rng, pixels[None], steps)
    except (*BROKEN, OSError) as error:
        # A codec may take no picture so small or so large.
        height, width, _ = pixels.shape
        named = " ".join(map(str, steps))
        raise DistortionError(
            f"{source}: {width} x {height} px cannot go through {named}: {error}"
        ) from error
    return np.asarray(distorted[0])


def _distort_video(
    source: Path, made: Path, steps: Sequence[Step], rng: np.random.Generator, via_xvid: bool, max_pixels: int
) -> None:
    latest = source
    for number, (step, seed) in enumerate(zip(steps, seeds_of(rng, steps), strict=True)):
        stage = made.with_name(f"{number}{made.suffix}")
        _store(Clip(latest, max_pixels, source), stage, step, seed, via_xvid, max_pixels)
        if number:
            latest.unlink()
        latest = stage
    latest.replace(made)


def _store(clip: Clip, stage: Path, step: Step, seed: int, via_xvid: bool, max_pixels: int) -> None:
    """Write one step of a clip."""
    container = CONTAINERS[stage.suffix.lower()]
    factors = DISTORTIONS[step.name].rate_factors
    if factors:
        write_clip(stage, container, clip.frames(), clip, h264(factors[step.level - 1]), sound=True)
    elif via_xvid:
        avi = stage.with_suffix(".xvid")
        frames = (to_plain_frame(picture) for picture, _ in _distorted(clip, step, seed))
        write_clip(avi, "avi", frames, clip, STORED_AS["mpeg4"], sound=False)
        coded = Clip(avi, max_pixels, clip.called)
        write_clip(stage, container, coded.frames(), clip, h264(USUAL_RATE_FACTOR), sound=False)
        avi.unlink()
    else:
        coder = STORED_AS.get(clip.codec, h264(USUAL_RATE_FACTOR))
        frames = (to_frame(picture, like) for picture, like in _distorted(clip, step, seed))
        write_clip(stage, container, frames, clip, coder, sound=True)


def _distorted(clip: Clip, step: Step, seed: int) -> Iterator[tuple[Any, Any]]:
    """Distort a clip piece by piece, as its frames would be at once: each picture beside its old frame."""
    distortion = DISTORTIONS[step.name]
    rng = np.random.default_rng(seed)
    for piece in pieces(clip.frames()):
        if not distortion.each_frame:
            rng = np.random.default_rng(seed)
        pictures = np.stack([to_rgb(frame) for frame in piece])
        yield from zip(distortion.apply(rng, pictures, step.level), piece, strict=True)

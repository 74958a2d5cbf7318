"""Distortions of files: pictures, and videos of which each step is stored again as the data set's were.

A video's step reads what the step before wrote, distorts its frames and stores them by the codec that they
came in (`updater/distortions/clip_writing.py`; H.264 at rate factor 23), the sound copied. A step that is
H.264 itself codes the frames as they were decoded, with no detour over RGB. Through XVID, as DeeperForensics
did it, every other step goes through MPEG-4 part 2 in an AVI first, whose frames are then handed on to H.264;
its sound is lost.

A meta file says what each file was distorted by, one line a file:

    PATH TYPE:LEVEL [TYPE:LEVEL …]

The steps stand in the order in which they were applied (DeeperForensics-1.0, lists of manipulated videos). A
line of a path alone says that nothing was done.
"""

import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image, JpegImagePlugin

from ingest.sandbox.containers import demuxer
from ingest.sandbox.decode import DecodeError, image_frames
from updater.distortions.clip import BROKEN, Clip, pieces, to_frame, to_plain_frame, to_rgb
from updater.distortions.clip_writing import CONTAINERS, STORED_AS, USUAL_RATE_FACTOR, h264, write_clip
from updater.distortions.distortion import DistortionError, Step
from updater.distortions.methods import DISTORTIONS, distort, seeds_of, step
from updater.filters import Picture

_QUALITY = 95
_JPEG = ("JPEG", "MPO")
_HEAD_BYTES = 4096


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
    for number, (applied, seed) in enumerate(zip(steps, seeds_of(rng, steps), strict=True)):
        stage = made.with_name(f"{number}{made.suffix}")
        _store(Clip(latest, max_pixels, source), stage, applied, seed, via_xvid, max_pixels)
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
        frames = (to_plain_frame(picture) for picture, _ in _distort_pieces(clip, step, seed))
        write_clip(avi, "avi", frames, clip, STORED_AS["mpeg4"], sound=False)
        coded = Clip(avi, max_pixels, clip.called)
        write_clip(stage, container, coded.frames(), clip, h264(USUAL_RATE_FACTOR), sound=False)
        avi.unlink()
    else:
        coder = STORED_AS.get(clip.codec, h264(USUAL_RATE_FACTOR))
        frames = (to_frame(picture, like) for picture, like in _distort_pieces(clip, step, seed))
        write_clip(stage, container, frames, clip, coder, sound=True)


def _distort_pieces(clip: Clip, step: Step, seed: int) -> Iterator[tuple[Any, Any]]:
    """Distort a clip piece by piece, as its frames would be at once: each picture beside its old frame."""
    distortion = DISTORTIONS[step.name]
    rng = np.random.default_rng(seed)
    for piece in pieces(clip.frames()):
        if not distortion.each_frame:
            rng = np.random.default_rng(seed)
        pictures = np.stack([to_rgb(frame) for frame in piece])
        yield from zip(distortion.apply(rng, pictures, step.level), piece, strict=True)


@dataclass(frozen=True)
class Still:
    """A picture, uint8 RGB [H, W, 3], and the coding of a JPEG."""

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


_PATH_AND_STEP = re.compile(r"(.*\S)\s+(\w+:-?\w*)", re.ASCII)


def meta_line(path: str, steps: Sequence[Step]) -> str:
    """Write one line, without its end. Raises DistortionError where the path could not be read back."""
    line = " ".join([path, *map(str, steps)])
    if not path or not path.isprintable() or path != path.strip() or _split(line)[0] != path:
        raise DistortionError(f"{path!r} cannot be named in a meta file: rename it")
    return line


def parse_line(line: str) -> tuple[str, tuple[Step, ...]]:
    """Read one line: the path and its steps. Raises DistortionError for a step that is none."""
    path, named = _split(line.strip())
    steps = []
    for key in named:
        name, _, level = key.partition(":")
        # Longer numbers than these, Python refuses to read.
        if not level.isdecimal() or len(level) > 9:
            raise DistortionError(f"{key[:40]} has no level")
        steps.append(step(name, int(level)))
    return path, tuple(steps)


def read_meta(file: Path) -> dict[str, tuple[Step, ...]]:
    """Read a meta file: the steps by path, in the file's order; empty lines are skipped.

    Raises DistortionError, which names the line, and OSError where the file cannot be read.
    """
    by_path: dict[str, tuple[Step, ...]] = {}
    try:
        lines = file.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DistortionError(f"{file} is no text") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            path, steps = parse_line(line)
            if by_path.setdefault(path, steps) != steps:
                raise DistortionError(f"{path} was named before, with other distortions")
        except DistortionError as error:
            raise DistortionError(f"{file}, line {number}: {error}") from error
    return by_path


def steps_for(path: str, metas: Mapping[str, tuple[Step, ...]]) -> tuple[Step, ...]:
    """Find the steps of a file by its path below the folder.

    A meta file may name it from a folder above: the lines' paths that end with it count too. Raises
    DistortionError where no line names the file, or several with other steps.
    """
    if path in metas:
        return metas[path]
    fitting = {steps for named, steps in metas.items() if named.endswith(f"/{path}")}
    if len(fitting) != 1:
        problem = "several lines of the meta file name it" if fitting else "no line of the meta file names it"
        raise DistortionError(f"{path}: {problem}")
    (steps,) = fitting
    return steps


def missing(metas: Iterable[str], files: Iterable[str]) -> list[str]:
    """Return the paths of a meta file that are none of these files' and end with none of theirs."""
    there = set(files)
    return [named for named in metas if not there.intersection(_ends(named))]


def _ends(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.partition("/")[2]


def _split(line: str) -> tuple[str, list[str]]:
    """Part a line into its path, which may have blanks, and its steps."""
    steps: list[str] = []
    while match := _PATH_AND_STEP.fullmatch(line):
        line, last = match.groups()
        steps.insert(0, last)
    return line, steps

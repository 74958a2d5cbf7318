"""A network's view of a picture (a crop) or a video (a clip), in training and in tests.

A clip has so many frames of the video, a stride apart. A video that is shorter than that goes round: its
first frame follows its last.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ingest.sandbox.crops import cut, grid
from ingest.sandbox.extract import find_faces
from updater.benchmark.forgerynet.choices import Augmentation, Choices, Input
from updater.benchmark.forgerynet.sights import MAX_PIXELS, Sample, cut_to, picture_of, resize, square_about
from updater.benchmark.forgerynet.training import NetworkRecipe
from updater.data.layouts.entries import Entry, Extent
from updater.distortions.clip import Clip, to_rgb
from updater.distortions.distortion import Step
from updater.distortions.files import generator_of
from updater.distortions.methods import AUGMENTATIONS, distort, drawn_by_the_law_of_files
from updater.filters import Picture

LARGEST = 8 / 7
"""the most that a picture's side is scaled to, of the side that is then cut out"""
_COVERING, STEP = 9, 4
"""most crops of a picture that is to be covered"""


def training_crop(sight: Sample, choices: Choices, px: int, rng: np.random.Generator) -> Picture:
    """Return uint8 RGB [px, px, 3]: perturbed, scaled to px … 8/7 px, cut and mirrored, all by chance.

    Of the input native nothing is scaled; a picture that is smaller is mirrored beyond its edges.
    """
    frames = distort(rng, sight.pixels()[None], perturbation(rng, choices.augmentation))
    return np.asarray(scaled_and_cut(frames, choices.input, px, rng)[0])


def scaled_and_cut(frames: Picture, kind: Input, px: int, rng: np.random.Generator) -> Picture:
    """Return frames, uint8 RGB [T, H, W, 3], as [T, px, px, 3]: all scaled, cut and mirrored by one draw."""
    if kind == "face":
        side = int(rng.integers(px, round(LARGEST * px) + 1))
        frames = np.stack([resize(frame, side, side) for frame in frames])
    height, width = frames.shape[1:3]
    corner = int(rng.integers(max(0, width - px) + 1)), int(rng.integers(max(0, height - px) + 1))
    crops = np.concatenate([cut(frame, (corner,), px) for frame in frames])
    return np.ascontiguousarray(crops[:, :, ::-1]) if rng.random() < 0.5 else crops


def test_crops(sight: Sample, choices: Choices, px: int) -> Picture:
    """Return uint8 RGB [n, px, px, 3]: the crops whose mean is the answer.

    Of the input face, all that is looked at, scaled; of native the middle, or what covers the picture.
    """
    return _fit(sight.pixels()[None], choices.input, px, _COVERING if choices.crops == "multi" else 1)


def _fit(frames: Picture, kind: Input, px: int, most: int = 1) -> Picture:
    """Scale faces to px; of the input native cut each frame to at most so many crops, [n, px, px, 3]."""
    if kind == "face":
        return np.stack([resize(frame, px, px) for frame in frames])
    corners = grid(frames.shape[2], frames.shape[1], px, most)
    return np.concatenate([cut(frame, corners, px) for frame in frames])


def perturbation(rng: np.random.Generator, augmentation: Augmentation) -> tuple[Step, ...]:
    """Draw a picture's or a clip's perturbations: none, or by the law of ForgeryNet's files."""
    names = AUGMENTATIONS[augmentation]
    return drawn_by_the_law_of_files(rng, names) if names else ()


Numbers = NDArray[np.int64]
"""of the frames of a clip, [T]"""


def training_clip(
    sight: Sample, choices: Choices, recipe: NetworkRecipe, segments: bool, rng: np.random.Generator
) -> Picture:
    """Return uint8 RGB [T, px, px, 3]: a clip from anywhere, perturbed, scaled, cut and mirrored."""
    numbers = in_segments(sight.frames, recipe, rng) if segments else by_chance(sight.frames, recipe, rng)
    numbers = shuffle(numbers, sight.frames, choices.shuffled, rng)
    frames = _looked_at(frames_of(sight.entry, numbers), choices.input)
    frames = distort(rng, frames, perturbation(rng, choices.augmentation))
    return scaled_and_cut(frames, choices.input, recipe.px, rng)


def test_clips(sight: Sample, choices: Choices, recipe: NetworkRecipe, segments: bool) -> Picture:
    """Return uint8 RGB [n, T, px, px, 3]: the middle clip, or those that cover the video."""
    if segments:
        clips = [in_segments(sight.frames, recipe)]
    elif choices.crops == "multi":
        clips = covering(sight.frames, recipe)
    else:
        clips = [middle(sight.frames, recipe)]
    seed = sight.entry.path.name
    clips = [shuffle(clip, sight.frames, choices.shuffled, generator_of(0, seed)) for clip in clips]
    every = np.unique(np.concatenate(clips))
    decoded = dict(zip(every.tolist(), frames_of(sight.entry, every), strict=True))
    pixels = []
    for numbers in clips:
        frames = _looked_at(np.stack([decoded[number] for number in numbers.tolist()]), choices.input)
        pixels.append(_fit(frames, choices.input, recipe.px))
    return np.stack(pixels)


def clips_along(entry: Entry, extent: Extent, choices: Choices, recipe: NetworkRecipe) -> Iterator[Picture]:
    """Yield clips of frames in a row, uint8 RGB [T, px, px, 3], each `STEP` frames after the one before."""
    frames = _looked_at(frames_of(entry, np.arange(*extent)), choices.input)
    frames = _fit(frames, choices.input, recipe.px)
    for start in range(0, max(1, len(frames) - recipe.frames + 1), STEP):
        yield frames[(start + np.arange(recipe.frames)) % len(frames)]


def shuffle(numbers: Numbers, frames: int, every: int, rng: np.random.Generator) -> Numbers:
    """Return the frames at these places of a video that is shuffled in blocks of `every`; 0: as a whole."""
    return np.argsort(np.arange(frames) // (every or frames) + rng.random(frames))[numbers]


def by_chance(frames: int, recipe: NetworkRecipe, rng: np.random.Generator) -> Numbers:
    """Return the numbers of a clip that begins anywhere from which it fits, or at 0."""
    first = int(rng.integers(max(0, frames - _span(recipe)) + 1))
    return _clip(first, frames, recipe)


def middle(frames: int, recipe: NetworkRecipe) -> Numbers:
    return _clip(max(0, (frames - _span(recipe)) // 2), frames, recipe)


def covering(frames: int, recipe: NetworkRecipe) -> list[Numbers]:
    """Return clips one after the other; the last ends with the video, and may overlap the one before."""
    span = _span(recipe)
    last = max(0, frames - span)
    return [_clip(first, frames, recipe) for first in sorted({*range(0, last + 1, span), last})]


def in_segments(frames: int, recipe: NetworkRecipe, rng: np.random.Generator | None = None) -> Numbers:
    """Return a frame of each of equal segments: any by chance, or without a generator its middle."""
    share = rng.random(recipe.frames) if rng is not None else np.full(recipe.frames, 0.5)
    places = (np.arange(recipe.frames) + share) * frames / recipe.frames
    return np.minimum(places.astype(np.int64), frames - 1)


def frames_of(entry: Entry, numbers: Numbers) -> Picture:
    """Decode these frames, uint8 RGB [T, H, W, 3], in their order; a number may come twice.

    Distortions that the file is yet to be given are applied to them, with draws of the file's and their own.
    Raises ClipError or DistortionError where they cannot be decoded, and OSError.
    """
    frames = _decode_frames(entry, numbers)
    if entry.distorted or not entry.distortions:
        return frames
    rng = generator_of(0, f"{entry.path.name} {' '.join(map(str, entry.distortions))}")
    return distort(rng, frames, entry.distortions)


def _decode_frames(entry: Entry, numbers: Numbers) -> Picture:
    if entry.pictures:
        return np.stack([picture_of(entry.pictures[number]) for number in numbers.tolist()])
    every = enumerate(islice(Clip(entry.path, MAX_PIXELS).frames(), int(numbers.max()) + 1))
    frames = {number: to_rgb(frame) for number, frame in every if number in numbers}
    return np.stack([frames[number] for number in numbers.tolist()])


def _span(recipe: NetworkRecipe) -> int:
    """Return how many frames of the video a clip reaches over."""
    return (recipe.frames - 1) * recipe.stride + 1


def _clip(first: int, frames: int, recipe: NetworkRecipe) -> Numbers:
    return (first + recipe.stride * np.arange(recipe.frames)) % frames


def _looked_at(frames: Picture, kind: Input) -> Picture:
    """Cut frames to the largest face of the middle one; without one, and of the input native, all is kept."""
    if kind == "native" or not (faces := find_faces(frames[len(frames) // 2], 1)):
        return frames
    return cut_to(square_about(faces[0], frames.shape[2], frames.shape[1]), frames)

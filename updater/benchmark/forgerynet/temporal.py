"""The temporal task: the stretches of videos that are forged, found by one of the methods by name.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", section 4.2. A video
is seen from its first annotated frame to its last. With the protocol `cross`, each family is left out of
the training in turn and tested beside all reals.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from torch import Tensor, nn

from detector.features.cell_traces import CELL_VERSION, CELL_WIDTH
from detector.release.manifest import FEATURE_VERSION, FORENSIC_WIDTH
from detector.second_pass.scan_look import best_score
from detector.second_pass.scan_places import corners_along, most_restless
from detector.verdicts import Corner
from ingest.durable import write_durably
from ingest.sandbox.crops import Box, cut, grid
from ingest.sandbox.extract import find_faces
from ingest.settings import IngestSettings
from updater.benchmark.forgerynet.choices import EXTRACTORS, Job, in_group
from updater.benchmark.forgerynet.classes import of_videos
from updater.benchmark.forgerynet.sights import Sample
from updater.benchmark.forgerynet.training import as_input
from updater.benchmark.forgerynet.views import STEP, clips_along
from updater.benchmark.report.outcome import Outcome, Values, values
from updater.benchmark.temporal.method import Localization, Method, frame_auc, segment_figures
from updater.benchmark.temporal.methods import METHODS
from updater.data.layouts.entries import Entry, Extent, LayoutError, SegmentsError, with_frames
from updater.data.layouts.listed import Tally
from updater.distortions.clip import Clip, ClipError, to_rgb
from updater.filters import Picture
from updater.measures import auroc
from updater.scan.clips import ScannedClip, SeenFrames, make_clip
from updater.training.fit import half_precision

CROP_PX = 128
_SEARCHED_EVERY = 8
_PLACES, _LOOKS = 9, 6
_CACHE, _NAME = "frame-features", "features"


@dataclass(frozen=True)
class Video:
    """A listed video, and its features."""

    entry: Entry
    clip: ScannedClip


def videos(
    entries: Sequence[Entry],
    cache: Path,
    tally: Tally,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Video]:
    """Return the videos whose stretches are known: from the first annotated frame to the last.

    Left out and counted: those that are labelled as a whole only, those of one frame or none, those that
    cannot be decoded, and those whose list tells of frames that they do not have.
    """
    features = SeenFrames(CROP_PX)
    known = [entry for entry in entries if entry.annotated is not None]
    for entry in entries:
        if entry.annotated is None:
            tally.add("videos are labelled as a whole, and left out of the temporal task", entry.path)
    clips = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        read = threads.map(lambda entry: _read(entry, features, cache), known)
        for done, (entry, rows) in enumerate(zip(known, read, strict=True), start=1):
            if isinstance(rows, str):
                tally.add(rows, entry.path)
            else:
                clips.append(Video(entry, _scanned_clip(entry, rows)))
            progress(done, len(known))
    return clips


def _read(entry: Entry, features: SeenFrames, cache: Path) -> NDArray[np.float32] | str:
    """Return the features of a video's annotated frames, or its problem."""
    first, end = _extent_of(entry)
    try:
        key = hashlib.sha256(entry.path.read_bytes())
    except OSError:
        return "videos cannot be read, and are left out"
    key.update(f"{first} {end} {CROP_PX} {FEATURE_VERSION} {CELL_VERSION}".encode())
    kept = cache / f"{key.hexdigest()}.safetensors"
    if kept.is_file():
        return np.asarray(load_file(kept)[_NAME], np.float32)
    try:
        rows = frame_features(entry.path, features, first, end, IngestSettings().max_pixels)
        with_frames(entry, first + len(rows))
    except ClipError:
        return "videos cannot be decoded, or change their size, and are left out"
    except SegmentsError:
        return "videos have fewer frames than their list tells of, and are left out"
    if len(rows) < 2:
        return "videos have one annotated frame, and are left out"
    write_durably(kept, save({_NAME: rows}))
    return rows


def _scanned_clip(entry: Entry, rows: NDArray[np.float32]) -> ScannedClip:
    start = _extent_of(entry).first
    return make_clip(rows, [(first - start, end - start) for first, end in entry.segments])


def _extent_of(entry: Entry) -> Extent:
    return entry.annotated or Extent(0, 1)


@dataclass(frozen=True)
class PredictedVideo:
    """A video with its truth and a method's answer."""

    family: str
    clip: ScannedClip
    answer: Localization

    @property
    def is_forged(self) -> bool:
        return len(self.clip.segments) > 0


def figures(videos: Sequence[PredictedVideo]) -> dict[str, float]:
    """Return the figures of these videos, reals among them; nan where there is nothing to measure by.

    Beside the paper's: `frame_auc`, and how well the whole video is told, `clip_auc_mean` by the mean of its
    frames' scores and `clip_auc_best` by its best segment.
    """
    answers, truth = [video.answer for video in videos], [video.clip.segments for video in videos]
    forged = np.array([video.is_forged for video in videos], bool)
    mean = np.array([answer.frame_scores.mean() for answer in answers])
    best = np.array([best_score(answer.segments) for answer in answers])
    return {
        **segment_figures([answer.segments for answer in answers], truth),
        "frame_auc": frame_auc([answer.frame_scores for answer in answers], truth),
        "clip_auc_mean": auroc(mean[forged], mean[~forged]),
        "clip_auc_best": auroc(best[forged], best[~forged]),
    }


def by_family(videos: Sequence[PredictedVideo]) -> dict[str, Values]:
    """Return the figures of each family's forged videos beside all reals."""
    families = sorted({video.family for video in videos if video.is_forged})
    beside = {of: [v for v in videos if not v.is_forged or v.family == of] for of in families}
    return {family: values(figures(own), len(own)) for family, own in beside.items()}


def see_by(network: str, job: Job, parts: Mapping[str, Sequence[Video]]) -> dict[str, list[Video]]:
    """Return the videos with the features of a network that was trained to tell their clips first.

    He et al. 2021, table 9: features of clips in a row, four frames apart, from before the network's head. A
    frame has those of the clip whose middle is nearest.
    """
    choices = replace(job.choices, task="video", model=network)
    classifier = of_videos(choices, 2, job.device, job.weights)
    train_on = [Sample(video.entry, frames=_extent_of(video.entry).end) for video in parts["train"]]
    model = classifier.train(
        train_on,
        np.array([sample.entry.label for sample in train_on], np.int64),
        seed=job.seed,
        device=job.device,
        checkpoint=job.folder / "features.safetensors",
        progress=partial(job.progress, f"training {network}"),
    )
    rows: list[Tensor] = []
    head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    head.register_forward_pre_hook(lambda _, shown: rows.append(shown[0].float().cpu()))

    def features(video: Video) -> NDArray[np.float32]:
        rows.clear()
        with torch.inference_mode(), half_precision(job.device):
            for clip in clips_along(video.entry, _extent_of(video.entry), choices, classifier.recipe):
                model(as_input(torch.from_numpy(clip[None]), job.device))
        starts = np.arange(len(video.clip.features)) - classifier.recipe.frames // 2
        nearest = np.rint(starts / STEP).clip(0, len(rows) - 1).astype(int)
        # Methods on the release's features leave out the last, of cells.
        return np.pad(torch.cat(rows).numpy()[nearest], ((0, 0), (0, CELL_WIDTH)))

    return {
        part: [replace(v, clip=replace(v.clip, features=features(v))) for v in videos]
        for part, videos in parts.items()
    }


def measure(job: Job) -> Outcome:
    """Train a method on the videos and test it.

    Raises LayoutError where a part has no forged stretch that can be used.
    """
    model = job.choices.model
    name, _, network = model.partition(":")
    method = METHODS[name if network in EXTRACTORS else model]
    tally = Tally()
    parts: dict[str, list[Video]] = {}
    for part, entries in (("train", job.train), ("test", job.test)):
        parts[part] = videos(
            entries, job.cache / _CACHE, tally, lambda *at, part=part: job.progress(f"look at {part}", *at)
        )
        if not any(len(video.clip.segments) for video in parts[part]):
            raise LayoutError(f"{part} has no video with a forged stretch that can be decoded")
    if network in EXTRACTORS:
        parts = see_by(network, job, parts)
    if job.choices.protocol == "cross":
        return _left_out(job, method, parts["train"], parts["test"], tally)
    train_on = parts["train"]
    if chosen := job.choices.train_on:
        train_on = [
            video
            for video in train_on
            if not video.entry.label or in_group(video.entry.family, job.kinds, chosen[0])
        ]
    answers = _predict_segments(job, method, train_on, parts["test"], "all")
    return Outcome(
        figures=values(figures(answers), len(answers)),
        families=by_family(answers),
        about={
            "trained_on": len(train_on),
            "tested_on": len(answers),
            "stretches": sum(len(video.clip.segments) for video in answers),
        },
        notes=tally.notes(),
    )


def _left_out(
    job: Job, method: Method, train_on: Sequence[Video], test_on: Sequence[Video], tally: Tally
) -> Outcome:
    table: dict[str, dict[str, Values]] = {}
    for family in job.kinds:
        own = [video for video in test_on if video.entry.family in (family, "real")]
        rest = [video for video in train_on if video.entry.family != family]
        if not any(len(video.clip.segments) for video in own) or len(rest) == len(train_on):
            continue
        answers = _predict_segments(job, method, rest, own, f"all but {family}")
        table[f"all but {family}"] = {family: values(figures(answers), len(answers))}
    return Outcome(table=table, notes=tally.notes())


def _predict_segments(
    job: Job, method: Method, train_on: Sequence[Video], test_on: Sequence[Video], name: str
) -> list[PredictedVideo]:
    clips = [video.clip for video in train_on]
    localize = method(clips, job.seed, lambda *at: job.progress(f"training on {name}", *at))
    return [PredictedVideo(v.entry.family, v.clip, localize(v.clip.features)) for v in test_on]


def frame_features(
    path: Path, features: SeenFrames, first: int, end: int | None, max_pixels: int
) -> NDArray[np.float32]:
    """Return the raw features of the frames first … end - 1 of a file, float32 [T, F]; end None: all.

    One crop a frame, which follows the largest face. A video without a face is seen where it is most
    restless: of a grid of crops, where the forensic features of a few frames deviate most from their median,
    in units of all crops' deviation. features: of crops of `CROP_PX`. Raises ClipError where the file cannot
    be read, or holds none of these.
    """
    clip = Clip(path, max_pixels)
    searched = dict(_searched_frames(clip, first, end))
    if not searched:
        raise ClipError(f"{path} holds no frame from {first} on")
    height, width = next(iter(searched.values())).shape[:2]
    if width <= CROP_PX and height <= CROP_PX:
        faces: dict[int, Box] = {}
        elsewhere: Corner = (0, 0)
    else:
        boxes_of = {number: find_faces(picture, 1) for number, picture in searched.items()}
        faces = {number: boxes[0] for number, boxes in boxes_of.items() if boxes}
        elsewhere = (0, 0) if faces else _most_restless(list(searched.values()), features)
    frames = sum(1 for _ in islice(clip.frames(), first, end))
    corners = corners_along(faces, range(frames), (width, height), CROP_PX, elsewhere)
    pairs = zip(islice(clip.frames(), first, end), corners, strict=True)
    return features(np.concatenate([cut(to_rgb(frame), (corner,), CROP_PX) for frame, corner in pairs]))


def _searched_frames(clip: Clip, first: int, end: int | None) -> Iterator[tuple[int, Picture]]:
    for number, frame in enumerate(islice(clip.frames(), first, end)):
        if number % _SEARCHED_EVERY == 0:
            yield number, to_rgb(frame)


def _most_restless(pictures: list[Picture], features: SeenFrames) -> Corner:
    looked = pictures[:: -(-len(pictures) // _LOOKS)]
    height, width = looked[0].shape[:2]
    corners = grid(width, height, CROP_PX, _PLACES)
    rows = features(np.concatenate([cut(frame, corners, CROP_PX) for frame in looked]))[:, :FORENSIC_WIDTH]
    return corners[most_restless(rows.reshape(len(looked), len(corners), -1))]

"""The third graph of a candidate, which says when a video is forged: trained anew, or its parent's."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from detector.model.scanner import Scanner, ScannerGraph
from detector.release.artifact import EVALUATION, SCANNER
from detector.release.crop_graphs import ScanContract
from detector.release.tensors import CROPS, Request
from detector.second_pass.scan_look import Segments
from memory.records import REAL
from updater.candidate.draft import Draft, Scanned, put_graph, stage, take_graph_over
from updater.candidate.plan import CandidatePlan, CandidateRefusedError
from updater.data.real_clips import LEAST_VIDEOS, NO_CLIPS, RealClips
from updater.data.stored_rows import chosen_rows
from updater.data.training_data import LabelledCrops
from updater.draws import SeedPurpose
from updater.progress import Progress
from updater.records import Evaluation, ScannerFound
from updater.scan.clips import ScannedClip, SeenFrames
from updater.scan.simulated import Features, library_clips, real_clips, simulate_clip, simulate_clips
from updater.scan.training import BATCH, detect, evaluate, false_alarm_rate, threshold_of, train_scanner
from updater.training.crop_rows import Crops

_PROBE_FRAMES = 24
TRAINED, CALIBRATED, TESTED = 240, 100, 100
"""how many clips are simulated of each split"""
FULL_STEPS = 600
"""With fewer steps there are fewer clips, in proportion, since few that are seen often teach more."""


@stage("scan", "scanned.json", Scanned)
def build_scanner(draft: Draft, plan: CandidatePlan) -> Scanned | None:
    """Put a scanner's files into the artifact; return its contract and figures, None for a candidate without.

    It is trained where the plan has steps for it: on clips that are simulated from the train split's reals
    and, where there are any, on clips of its real videos; half of each with pseudo-forged stretches. Its
    threshold is the higher of two: of simulated real clips, and of enough real videos of the calibration
    split's. The test split's say how it fares. Else it is the parent's, where that has one.

    Raises CandidateRefusedError where crops of this side have no features, and ExportError.
    """
    if not plan.scanner_steps:
        return _taken_over(plan, draft.artifact)
    try:
        of_frames = SeenFrames(plan.crop_plan.crop_px)
    except ValueError as error:
        raise CandidateRefusedError(f"{error}: set FORGEWATCH_UPDATER_SCANNER_STEPS=0") from error
    clips = ScannedClips(plan, of_frames, draft.progress)
    train, learnt_library = clips.to_learn()
    scanner = train_scanner(
        train,
        plan.seed,
        epochs=max(1, round(plan.scanner_steps * BATCH / len(train))),
        progress=partial(draft.progress, "scanner"),
    )
    held, of_library = (detect(scanner, some) for some in clips.held_back())
    threshold = threshold_of(held, of_library)
    contract = _put(plan, scanner, draft.artifact, [*held, *of_library], threshold)
    tested, of_videos = clips.to_test()
    figures = ScannerFound(
        **evaluate(scanner, tested, threshold).model_dump(),
        learnt_library=learnt_library,
        held_library=len(of_library),
        library=evaluate(scanner, of_videos, threshold) if of_videos else None,
    )
    return Scanned(contract=contract, found=figures)


def _put(
    plan: CandidatePlan, scanner: Scanner, folder: Path, held: Sequence[Segments], threshold: float
) -> ScanContract:
    """Export a scanner, prove it by a simulated clip, and put its files into the folder.

    held: what it says of held-back real clips.
    """
    crop = real_crops(plan.splits.calibration)[np.zeros(1, np.int64)][0]
    rng = SeedPurpose.CLIP_OF_PROBE.generator(plan.seed)
    frames = simulate_clip(rng, crop, plan.without, forged=True).frames
    probe: Request = {CROPS: frames[:_PROBE_FRAMES]}
    crop_px = plan.crop_plan.crop_px
    contract = ScanContract(
        crop_px=crop_px, threshold=threshold, reals_told=false_alarm_rate(held, threshold), reals=len(held)
    )
    graph = ScannerGraph(scanner, crop_px)
    return put_graph(folder, SCANNER, graph, scanner, contract, [probe, {CROPS: frames}])


def _taken_over(plan: CandidatePlan, folder: Path) -> Scanned | None:
    if plan.parent is None or plan.parent.artifact.manifest.scanner is None:
        return None
    parent = plan.parent.artifact
    take_graph_over(folder, SCANNER, parent)
    figures = Evaluation.model_validate_json((parent.folder / EVALUATION).read_bytes()).scanner
    return Scanned(contract=plan.parent.artifact.manifest.scanner, found=figures)


class ScannedClips:
    """Makes a plan's clips, as the head over time sees them; no clip's group is in two splits."""

    def __init__(self, plan: CandidatePlan, features: Features, progress: Progress) -> None:
        self._plan, self._features, self._progress = plan, features, progress

    def to_learn(self) -> tuple[list[ScannedClip], int]:
        """Return clips to train on, half of them forged, and how many are of real videos.

        These come beside the simulated ones: each video as a real and a forged clip, at most half as many.
        """
        plan, videos, count = self._plan, self._videos("train"), self._count(TRAINED)
        of_library = min(count // 2, 2 * len(videos))
        simulated = self._simulate(
            "scanner: clips", plan.splits.train, SeedPurpose.CLIPS_TO_LEARN, count, 0.5
        )
        if not of_library:
            return simulated, 0
        made = library_clips(
            videos,
            range(len(videos)),
            self._features,
            of_library,
            without=plan.without,
            seed=SeedPurpose.VIDEOS_TO_LEARN.of(plan.seed),
            progress=partial(self._progress, "scanner: clips of videos"),
        )
        return [*simulated, *made], of_library

    def held_back(self) -> tuple[list[ScannedClip], list[ScannedClip]]:
        """Return simulated real clips, and real videos as they are, one a group; none where they are few."""
        count = self._count(CALIBRATED)
        simulated = self._simulate(
            "scanner: held-back clips", self._plan.splits.calibration, SeedPurpose.CLIPS_HELD_BACK, count, 0
        )
        videos = self._videos("calibration")
        numbers = videos.one_a_group()[:CALIBRATED]
        if len(numbers) < LEAST_VIDEOS:
            return simulated, []
        return simulated, real_clips(
            videos, numbers, self._features, partial(self._progress, "scanner: held-back videos")
        )

    def to_test(self) -> tuple[list[ScannedClip], list[ScannedClip]]:
        """Return simulated clips, half of them forged; and each of some real videos, as it is and forged."""
        plan, count = self._plan, self._count(TESTED)
        simulated = self._simulate(
            "scanner: test clips", plan.splits.test, SeedPurpose.CLIPS_TO_TEST, count, 0.5
        )
        videos = self._videos("test")
        numbers = videos.one_a_group()[: count // 2]
        if not numbers:
            return simulated, []
        return simulated, library_clips(
            videos,
            numbers,
            self._features,
            2 * len(numbers),
            without=plan.without,
            seed=SeedPurpose.VIDEOS_TO_TEST.of(plan.seed),
            coded_again_share=0,
            progress=partial(self._progress, "scanner: test videos"),
        )

    def _simulate(
        self, stage: str, items: LabelledCrops, stream: SeedPurpose, count: int, forged: float
    ) -> list[ScannedClip]:
        return simulate_clips(
            real_crops(items),
            self._features,
            count,
            forged,
            without=self._plan.without,
            seed=stream.of(self._plan.seed),
            progress=partial(self._progress, stage),
        )

    def _count(self, most: int) -> int:
        return max(2, min(most, most * self._plan.scanner_steps // FULL_STEPS))

    def _videos(self, split: str) -> RealClips:
        return self._plan.splits.clips.get(split, NO_CLIPS)


def real_crops(items: LabelledCrops) -> Crops:
    """Return all crops of the real ones, uint8 [T, S, S, 3]."""
    of_item = np.repeat(np.array(items.families) == REAL, np.diff(items.starts))
    crops: Crops = chosen_rows(items.crops, np.flatnonzero(of_item))
    return crops

"""The clips that a scanner learns from, is set and tested on: simulated, and of the library's videos."""

from functools import partial

import numpy as np

from memory.records import REAL
from updater.candidate.plan import Plan
from updater.data.real_clips import LEAST_VIDEOS, NO_CLIPS, RealClips
from updater.data.stored_rows import chosen_rows
from updater.data.training_data import LabelledCrops
from updater.draws import RandomStream
from updater.progress import Progress
from updater.scan.clips import ScannedClip
from updater.scan.simulated import Features, library_clips, real_clips, simulate_clips
from updater.training.crop_rows import Crops

TRAINED, CALIBRATED, TESTED = 240, 100, 100
"""how many clips are simulated of each split"""
FULL_STEPS = 600
"""With fewer steps there are fewer clips, in proportion, since few that are seen often teach more."""


class ScannedClips:
    """Makes a plan's clips, as the head over time sees them; no clip's group is in two splits."""

    def __init__(self, plan: Plan, features: Features, progress: Progress) -> None:
        self._plan, self._features, self._progress = plan, features, progress

    def to_learn(self) -> tuple[list[ScannedClip], int]:
        """Return clips to train on, half of them forged, and how many are of real videos.

        These come beside the simulated ones: each video as a real and a forged clip, at most half as many.
        """
        plan, videos, count = self._plan, self._videos("train"), self._count(TRAINED)
        of_library = min(count // 2, 2 * len(videos))
        simulated = self._simulated(
            "scanner: clips", plan.splits.train, RandomStream.CLIPS_TO_LEARN, count, 0.5
        )
        if not of_library:
            return simulated, 0
        made = library_clips(
            videos,
            range(len(videos)),
            self._features,
            of_library,
            without=plan.without,
            seed=RandomStream.VIDEOS_TO_LEARN.of(plan.seed),
            progress=partial(self._progress, "scanner: clips of videos"),
        )
        return [*simulated, *made], of_library

    def held_back(self) -> tuple[list[ScannedClip], list[ScannedClip]]:
        """Return simulated real clips, and real videos as they are, one a group; none where they are few."""
        count = self._count(CALIBRATED)
        simulated = self._simulated(
            "scanner: held-back clips", self._plan.splits.calibration, RandomStream.CLIPS_HELD_BACK, count, 0
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
        simulated = self._simulated(
            "scanner: test clips", plan.splits.test, RandomStream.CLIPS_TO_TEST, count, 0.5
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
            seed=RandomStream.VIDEOS_TO_TEST.of(plan.seed),
            coded_again_share=0,
            progress=partial(self._progress, "scanner: test videos"),
        )

    def _simulated(
        self, stage: str, items: LabelledCrops, stream: RandomStream, count: int, forged: float
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

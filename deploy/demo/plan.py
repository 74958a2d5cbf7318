"""Counts of the demonstration's media and training, in one place."""

import json
import os
import random
from dataclasses import dataclass

from memory.records import REAL
from updater.benchmark.synthetic.families import FAMILIES

DEFAULT_UNSEEN = "upsampled"
CORES = len(os.sched_getaffinity(0))

LIBRARY_REALS, LIBRARY_FORGERIES, LIBRARY_CLIPS = 800, 90, 80
BEFORE_REALS, BEFORE_EACH, BEFORE_UNSEEN = 260, 26, 300
SWAP_REALS, SWAP_EACH, SWAP_PER_SECOND, SWAP_LOOK_S = 160, 20, 8.0, 0.5
AFTER_REALS, AFTER_EACH, AFTER_NEW = 260, 30, 60
IN_PART_EACH = 12
CLIPS_REALS, CLIPS_EACH = 20, 7
IN_CLIPS = ("upsampled", "inpainted", "blended", "sharpened")
"""Families of whose forged parts H.264 leaves enough to be found; of the others' it leaves hardly a trace."""
LOCALIZER_STEPS, SCANNER_STEPS = 150, 100
"""Of the training of what says where a picture is forged, and when a clip, by which release 0 alone is made
longer."""

HOSTILE: tuple[bytes | None, ...] = (
    None,
    b"",
    b"this is no media",
    b"\xff\xd8\xff\xe0" + bytes(60),
    b"\x89PNG\r\n\x1a\n" + bytes(100),
)
"""Values that are no media: each must become a dead letter and disturb nothing."""

FamilyIndexes = list[tuple[str, int]]
"""Media by number: (family or "real", index)."""


@dataclass(frozen=True)
class Library:
    """The labelled media that release 0 learns from: pictures, real and of each known family; real clips."""

    seed: int
    unseen: str
    reals: int = LIBRARY_REALS
    forgeries: int = LIBRARY_FORGERIES
    clips: int = LIBRARY_CLIPS

    @property
    def counts(self) -> dict[str, int]:
        """How many pictures of each class."""
        return {REAL: self.reals, **{family: self.forgeries for family in FAMILIES if family != self.unseen}}


def training_settings(seed: int, unseen: str) -> dict[str, str]:
    """Settings of the updater: its seed, and that no pseudo-forgery is of the unseen family's kinds."""
    return {
        "FORGEWATCH_UPDATER_SEED": str(seed),
        "FORGEWATCH_UPDATER_WITHOUT_KINDS": json.dumps(sorted(FAMILIES[unseen].kinds)),
    }


def release_zero_settings(seed: int, unseen: str) -> dict[str, str]:
    """Settings of the updater while it makes release 0, whose localizer and scanner later releases keep."""
    return training_settings(seed, unseen) | {
        "FORGEWATCH_UPDATER_LOCALIZER_STEPS": str(LOCALIZER_STEPS),
        "FORGEWATCH_UPDATER_SCANNER_STEPS": str(SCANNER_STEPS),
    }


def before(seed: int, unseen: str) -> FamilyIndexes:
    """Reals and known fakes, then the unseen family among reals."""
    known = _shuffle(seed, {REAL: BEFORE_REALS // 2, **dict.fromkeys(_others(unseen), BEFORE_EACH)})
    reals = [(REAL, index) for index in range(BEFORE_REALS // 2, BEFORE_REALS)]
    return known + _shuffle_list(seed, [*reals, *((unseen, index) for index in range(BEFORE_UNSEEN))])


def swap(seed: int, unseen: str) -> FamilyIndexes:
    """Media that stream while the releases change: numbers that `before` does not use."""
    wanted = [(REAL, BEFORE_REALS + index) for index in range(SWAP_REALS)]
    wanted += [(name, BEFORE_EACH + index) for name in _others(unseen) for index in range(SWAP_EACH)]
    return _shuffle_list(seed, wanted + [(unseen, BEFORE_UNSEEN + index) for index in range(SWAP_EACH)])


def after(seed: int, new: str) -> FamilyIndexes:
    """Fresh media of every family, of the new one more: a share of thirty is uncertain by seven points."""
    return _shuffle(seed, {REAL: AFTER_REALS, **dict.fromkeys(FAMILIES, AFTER_EACH), new: AFTER_NEW})


def in_part() -> FamilyIndexes:
    """Pictures of every family that are forged in a part of their area, by turns."""
    return [(family, index) for index in range(IN_PART_EACH) for family in FAMILIES]


def clips() -> FamilyIndexes:
    """Real clips, and clips that are forged in stretches, of each family by turns."""
    forged = [(family, index) for index in range(CLIPS_EACH) for family in IN_CLIPS]
    return [(REAL, index) for index in range(CLIPS_REALS)] + forged


def _others(unseen: str) -> list[str]:
    return [family for family in FAMILIES if family != unseen]


def _shuffle(seed: int, counts: dict[str, int]) -> FamilyIndexes:
    return _shuffle_list(
        seed, [(family, index) for family, count in counts.items() for index in range(count)]
    )


def _shuffle_list(seed: int, wanted: FamilyIndexes) -> FamilyIndexes:
    random.Random(seed).shuffle(wanted)  # noqa: S311 - an order, no secret
    return wanted

"""The third graph of a candidate, which says when a video is forged: trained anew, or its parent's."""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from safetensors.torch import save_file

from detector.artifact import EVALUATION, SCANNER, SCANNER_PROBE, SCANNER_WEIGHTS
from detector.contract import CROPS
from detector.probe import write_probe
from detector.scan_contract import ScanContract
from detector.scan_export import export_scanner
from detector.scan_session import ScanSession
from detector.scanner import Scanner
from detector.stretches import Segments, best_score
from detector.tensors import Request
from ingest.durable import rename_durably
from memory.features import ItemFeatures
from memory.records import REAL
from updater.candidate.plan import CandidateRefusedError, Plan
from updater.filters import Picture
from updater.records import Evaluation, FoundStretches
from updater.scan.calibrate import fared, share_told, threshold_for, told
from updater.scan.clips import ScannedClip
from updater.scan.simulated import simulate_clip, simulate_clips
from updater.scan.training import BATCH, train_scanner
from updater.stored_rows import chosen_rows
from updater.training.crop_rows import Crops
from updater.training_data import LabelledCrops

TRAINED, CALIBRATED, TESTED = 240, 100, 100
"""how many clips are simulated of each split; fewer where the steps do not see every clip once"""
_PROBE_FRAMES = 24
_FILES = (SCANNER, SCANNER_PROBE, SCANNER_WEIGHTS)


class Scanned(BaseModel):
    """What says when a video is forged, and how it fared when it was trained."""

    model_config = ConfigDict(frozen=True)

    contract: ScanContract
    found: FoundStretches | None
    """None of a parent's of which nothing is known"""


def scanned(plan: Plan, draft: Path, progress: Callable[[str, int, int], None]) -> Scanned | None:
    """Put a scanner's files into draft and return what it is; None for a candidate without.

    It is trained where the plan has steps for it, on clips that are simulated from the train split's reals,
    half of them with pseudo-forged stretches. Its threshold is calibrated on real clips of the calibration
    split's, and clips of the test split's say how it fares. Else it is the parent's, where that has one.

    Raises CandidateRefusedError where crops of this side have no features, and detector.export.ExportError.
    """
    if not plan.scanner_steps:
        return _taken_over(plan, draft)
    try:
        of_items = ItemFeatures(plan.crop_plan.crop_px)
    except ValueError as error:
        raise CandidateRefusedError(f"{error}: set FORGEWATCH_UPDATER_SCANNER_STEPS=0") from error

    def features(frames: Picture) -> NDArray[np.float32]:
        return of_items([frame[None] for frame in frames])

    def clips(stage: str, items: LabelledCrops, number: int, most: int, forged: float) -> list[ScannedClip]:
        return simulate_clips(
            _real_crops(items),
            features,
            max(2, min(most, most * BATCH * plan.scanner_steps // TRAINED)),
            forged,
            without=plan.without,
            seed=(plan.seed, number),
            progress=partial(progress, stage),
        )

    train = clips("scanner: clips", plan.splits.train, 21, TRAINED, 0.5)
    scanner = train_scanner(
        train,
        plan.seed,
        epochs=max(1, round(plan.scanner_steps * BATCH / len(train))),
        progress=partial(progress, "scanner"),
    )
    held = told(scanner, clips("scanner: held-back clips", plan.splits.calibration, 22, CALIBRATED, 0))
    threshold = threshold_for([best_score(one) for one in held])
    contract = _put(plan, scanner, draft, held, threshold)
    tested = clips("scanner: test clips", plan.splits.test, 23, TESTED, 0.5)
    return Scanned(contract=contract, found=fared(scanner, tested, threshold))


def _put(
    plan: Plan, scanner: Scanner, draft: Path, held: Sequence[Segments], threshold: float
) -> ScanContract:
    """Export a scanner, prove it by a simulated clip, and put its files into draft.

    held: what it says of held-back real clips.
    """
    crop = _real_crops(plan.splits.calibration)[np.zeros(1, np.int64)][0]
    rng = np.random.default_rng([plan.seed, 24])
    shown = simulate_clip(rng, crop, plan.without, forged=True).frames
    asked: Request = {CROPS: shown[:_PROBE_FRAMES]}
    graph, probe, weights = (draft.parent / name for name in _FILES)
    contract = export_scanner(
        scanner,
        plan.crop_plan.crop_px,
        graph,
        [{CROPS: shown}, asked],
        threshold=threshold,
        reals_told=share_told(held, threshold),
        reals=len(held),
    )
    write_probe(probe, asked, ScanSession(graph, contract, threads=1).score(asked))
    save_file({name: value.contiguous() for name, value in scanner.state_dict().items()}, weights)
    for name in _FILES:
        rename_durably(draft.parent / name, draft / name)
    return contract


def _taken_over(plan: Plan, draft: Path) -> Scanned | None:
    if plan.parent is None or plan.parent.artifact.manifest.scanner is None:
        return None
    parent = plan.parent.artifact
    for name in _FILES:
        shutil.copyfile(parent.folder / name, draft.parent / name)
        rename_durably(draft.parent / name, draft / name)
    found = Evaluation.model_validate_json((parent.folder / EVALUATION).read_bytes()).scanner
    return Scanned(contract=plan.parent.artifact.manifest.scanner, found=found)


def _real_crops(items: LabelledCrops) -> Crops:
    """Return all crops of the real ones, uint8 [T, S, S, 3]."""
    of_item = np.repeat(np.array(items.families) == REAL, np.diff(items.starts))
    crops: Crops = chosen_rows(items.crops, np.flatnonzero(of_item))
    return crops

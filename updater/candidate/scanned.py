"""The third graph of a candidate, which says when a video is forged: trained anew, or its parent's."""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict
from safetensors.torch import save_file

from detector.looks.stretches import Segments
from detector.model.export import export_proven
from detector.model.scanner import Scanner, ScannerGraph
from detector.release.artifact import EVALUATION, SCANNER
from detector.release.graph_contract import CROPS, write_probe
from detector.release.scan_contract import ScanContract
from detector.release.tensors import Request
from detector.serving.session import Session
from ingest.durable import rename_durably
from updater.candidate.plan import CandidateRefusedError, Plan
from updater.candidate.scanned_clips import ScannedClips, real_crops
from updater.draws import RandomStream
from updater.progress import Progress
from updater.records import Evaluation, ScannerFound
from updater.scan.features import SeenFrames
from updater.scan.simulated import simulate_clip
from updater.scan.training import BATCH, fared, share_told, threshold_of, told, train_scanner

_PROBE_FRAMES = 24


class Scanned(BaseModel):
    """What says when a video is forged, and how it fared when it was trained."""

    model_config = ConfigDict(frozen=True)

    contract: ScanContract
    found: ScannerFound | None
    """None of a parent's of which nothing is known"""


def scanned(plan: Plan, draft: Path, progress: Progress) -> Scanned | None:
    """Put a scanner's files into draft and return what it is; None for a candidate without.

    It is trained where the plan has steps for it: on clips that are simulated from the train split's reals
    and, where there are any, on clips of its real videos; half of each with pseudo-forged stretches. Its
    threshold is the higher of two: of simulated real clips, and of enough real videos of the calibration
    split's. The test split's say how it fares. Else it is the parent's, where that has one.

    Raises CandidateRefusedError where crops of this side have no features, and ExportError.
    """
    if not plan.scanner_steps:
        return _taken_over(plan, draft)
    try:
        of_frames = SeenFrames(plan.crop_plan.crop_px)
    except ValueError as error:
        raise CandidateRefusedError(f"{error}: set FORGEWATCH_UPDATER_SCANNER_STEPS=0") from error
    clips = ScannedClips(plan, of_frames, progress)
    train, learnt_library = clips.to_learn()
    scanner = train_scanner(
        train,
        plan.seed,
        epochs=max(1, round(plan.scanner_steps * BATCH / len(train))),
        progress=partial(progress, "scanner"),
    )
    held, of_library = (told(scanner, some) for some in clips.held_back())
    threshold = threshold_of(held, of_library)
    contract = _put(plan, scanner, draft, [*held, *of_library], threshold)
    tested, of_videos = clips.to_test()
    found = ScannerFound(
        **fared(scanner, tested, threshold).model_dump(),
        learnt_library=learnt_library,
        held_library=len(of_library),
        library=fared(scanner, of_videos, threshold) if of_videos else None,
    )
    return Scanned(contract=contract, found=found)


def _put(
    plan: Plan, scanner: Scanner, draft: Path, held: Sequence[Segments], threshold: float
) -> ScanContract:
    """Export a scanner, prove it by a simulated clip, and put its files into draft.

    held: what it says of held-back real clips.
    """
    crop = real_crops(plan.splits.calibration)[np.zeros(1, np.int64)][0]
    rng = RandomStream.CLIP_OF_PROBE.generator(plan.seed)
    shown = simulate_clip(rng, crop, plan.without, forged=True).frames
    asked: Request = {CROPS: shown[:_PROBE_FRAMES]}
    crop_px = plan.crop_plan.crop_px
    contract = ScanContract(
        crop_px=crop_px,
        threshold=threshold,
        reals_told=share_told(held, threshold),
        reals=len(held),
    )
    aside, probe, weights = (draft.parent / name for name in SCANNER.files)
    graph = ScannerGraph(scanner, crop_px)
    contract = export_proven(graph, contract, aside, [{CROPS: shown}, asked])
    write_probe(probe, asked, Session(aside, contract, threads=1).score(asked))
    save_file({name: value.contiguous() for name, value in scanner.state_dict().items()}, weights)
    for name in SCANNER.files:
        rename_durably(draft.parent / name, draft / name)
    return contract


def _taken_over(plan: Plan, draft: Path) -> Scanned | None:
    if plan.parent is None or plan.parent.artifact.manifest.scanner is None:
        return None
    parent = plan.parent.artifact
    for name in SCANNER.files:
        shutil.copyfile(parent.folder / name, draft.parent / name)
        rename_durably(draft.parent / name, draft / name)
    found = Evaluation.model_validate_json((parent.folder / EVALUATION).read_bytes()).scanner
    return Scanned(contract=plan.parent.artifact.manifest.scanner, found=found)

"""What experts say of labelled items: the mean logit of each item's crops, or that of its picture."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue

from detector.release.experts import LOGIT, PICTURES, ExpertContract
from detector.serving.session import Session
from ingest.records import PicturePlan
from updater.data.training_data import LabelledCrops
from updater.experts.check import ExpertError
from updater.progress import Progress, Steps, uncounted
from updater.training.kept_rows import FrozenModel, kept_rows


@dataclass(frozen=True)
class Expert:
    """An expert with its ONNX file."""

    contract: ExpertContract
    path: Path


def digests_of(experts: Sequence[Expert]) -> dict[str, JsonValue]:
    """Return the experts' digests by name, for the record of a run; nothing where there are none."""
    return {"experts": {one.contract.name: one.contract.digest for one in experts}} if experts else {}


def picture_plan_of(experts: Sequence[Expert]) -> PicturePlan | None:
    """Return how whole pictures are shown to those experts that look at them; None where none does."""
    sides = [one.contract.side_px for one in experts if one.contract.input == "resize"]
    return PicturePlan(width_px=sides[0], height_px=sides[0], interpolation="bicubic") if sides else None


def logits_of(
    expert: Expert, items: LabelledCrops, kept: Path | None = None, progress: Steps = uncounted
) -> NDArray[np.float32]:
    """Return an expert's logit of each item, float32 [n]: the mean of its crops', or its picture's.

    kept: the folder of what was computed before. Raises ExpertError where the items are cut or kept otherwise
    than it takes them, and what `kept_rows` raises.
    """
    contract = expert.contract
    pictures = items.crops if contract.input == "crop" else items.pictures
    if pictures is None or (len(items) and pictures.shape[1] != contract.side_px):
        has = "no whole pictures" if pictures is None else f"pictures of {pictures.shape[1]} px"
        advice = (
            "add the expert anew"
            if contract.input == "crop"
            else f"set FORGEWATCH_MEMORY_PICTURE_PX={contract.side_px}, and import into an empty memory"
        )
        raise ExpertError(
            f"expert {contract.name} takes pictures of {contract.side_px} px, and the memory has {has}:"
            f" {advice}"
        )
    session = Session(expert.path, contract, torch.get_num_threads())

    def rows(some: NDArray[np.uint8], say: Steps) -> NDArray[np.float32]:
        logits = session.score({PICTURES: some})[LOGIT][:, None]
        say(len(some), len(some))
        return logits

    model = FrozenModel(contract.digest, 1, f"expert {contract.name}", contract.checkpoint, rows)
    each = kept_rows(model, pictures, kept, progress)[:, 0]
    if contract.input == "resize" or not len(items):
        return each
    sums = np.add.reduceat(each, items.starts[:-1])
    return np.asarray(sums / np.diff(items.starts), np.float32)


def with_expert_logits(
    items: LabelledCrops, experts: Sequence[Expert], kept: Path | None, progress: Progress
) -> LabelledCrops:
    """Return the items with each expert's logit. Raises as `logits_of` does."""
    if not experts:
        return items
    columns = [
        logits_of(expert, items, kept, partial(progress, f"expert {expert.contract.name}"))
        for expert in experts
    ]
    return replace(items, expert_logits=np.stack(columns, 1))

"""The inputs of an expert's registration: the memory's held-back items, and a proven ONNX file."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from detector.release.artifact import sha256_of
from detector.release.experts import ExpertContract
from ingest.records import PicturePlan
from memory.crops.crop_store import CropStore
from memory.records import Split
from memory.settings import MemorySettings
from memory.store import Store
from updater.data.training_data import LabelledCrops, load
from updater.experts.build import Layout, build
from updater.experts.check import ExpertError, check_expert
from updater.experts.look import Expert
from updater.experts.registry import ExpertRegistry
from updater.progress import Progress, no_progress

_HELD_BACK: tuple[Split, ...] = ("calibration", "test")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,29}")


def held_back(
    memory: MemorySettings, picture: PicturePlan | None, progress: Progress = no_progress
) -> LabelledCrops:
    """Load the memory's held-back labelled items, with whole pictures where a plan of them is given.

    Raises ExpertError where there is nothing, and what `updater.data.training_data.load` raises.
    """
    store = Store(memory.database_url)
    try:
        crops = CropStore(memory.crops_url)
        parts = [
            load(store, crops, split, (), partial(progress, f"load {split}"), picture=picture)
            for split in _HELD_BACK
        ]
    finally:
        store.close()
    full = [part for part in parts if len(part)]
    if not full:
        raise ExpertError("the memory holds back no labelled item to check an expert on: label some")
    return LabelledCrops.join(full)


def picture_plan_of(memory: MemorySettings, view: Literal["crop", "resize"]) -> PicturePlan | None:
    """Return the plan of an expert's whole pictures; None for crops. Raises ExpertError."""
    if view == "crop":
        return None
    plan = memory.picture_plan
    if plan is None:
        raise ExpertError(
            "--input resize needs whole pictures, and the memory keeps none: set"
            " FORGEWATCH_MEMORY_PICTURE_PX, and import into an empty memory"
        )
    return plan


def make(
    name: str, recipe: Layout, view: Literal["crop", "resize"], side_px: int, licence: str | None, path: Path
) -> Expert:
    """Write the expert's ONNX file to path, checked, and proven where it is made of a checkpoint.

    licence: None: as the checkpoint's metadata says. Raises ExpertError, WeightsError and BackboneError.
    """
    if not _NAME.fullmatch(name):
        raise ExpertError(f"{name!r} is no name of an expert: a letter, then letters, digits or _, 30 in all")
    own = recipe.checkpoint.suffix.lower() == ".onnx"
    licence = licence or (None if own else recipe.licence)
    if not licence:
        raise ExpertError(f"{recipe.checkpoint} does not state its licence: say it with --licence")
    contract = ExpertContract(
        name=name, input=view, side_px=side_px, digest="", checkpoint="", licence=licence
    )
    if own:
        return Expert(check_expert(recipe.checkpoint, contract, path), path)
    built = build(recipe, contract, path)
    digest = check_expert(path, contract, path).digest
    return Expert(built.model_copy(update={"digest": digest}), path)


def experts_of(names: Sequence[str], work_dir: Path, crop_px: int) -> tuple[Expert, ...]:
    """Return experts by their names in the registry, or of files, which look at native crops of this side.

    A file's graph is kept beside the registry. Raises as `make` does.
    """
    if not names:
        return ()
    known = {expert.contract.name: expert for expert in ExpertRegistry(work_dir).experts()}
    chosen = []
    for number, name in enumerate(names, 1):
        file = Path(name)
        if name not in known and not file.is_file():
            raise ExpertError(
                f"{name} is no expert ({', '.join(known) or 'none is registered'}), and no file"
            )
        if name in known:
            chosen.append(known[name])
            continue
        target = work_dir / "experts-of-files" / f"{sha256_of(file)[:32]}.onnx"
        target.parent.mkdir(parents=True, exist_ok=True)
        chosen.append(make(f"file_{number}", Layout(file), "crop", crop_px, "not asked", target))
    return tuple(chosen)

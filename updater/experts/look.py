"""Experts' output for labelled items: the mean logit of each item's crops, or that of its picture."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from pydantic import JsonValue

from detector.release.experts import LOGIT, PICTURES, ExpertContract
from detector.serving.session import Session
from ingest.durable import write_durably
from ingest.records import PicturePlan
from updater.data.stored_rows import StoredRows
from updater.data.training_data import LabelledCrops
from updater.experts.check import ExpertError
from updater.progress import Progress, Steps, no_steps
from updater.training.processes import is_first

_AT_ONCE, _WRITTEN_AFTER = 256, 4096
"""pictures looked at between two words of progress, and new ones between two states of what is kept"""
_DIGEST_BYTES = 32

log = structlog.get_logger()


@dataclass(frozen=True)
class Expert:
    """An expert with its ONNX file."""

    contract: ExpertContract
    path: Path


def digests_of(experts: Sequence[Expert]) -> dict[str, JsonValue]:
    """Return the experts' digests by name, for the record of a run; nothing where there are none."""
    return {"experts": {e.contract.name: e.contract.digest for e in experts}} if experts else {}


def picture_plan_of(experts: Sequence[Expert]) -> PicturePlan | None:
    """Return how whole pictures are shown to those experts that look at them; None where none does."""
    sides = [expert.contract.side_px for expert in experts if expert.contract.input == "resize"]
    return PicturePlan(width_px=sides[0], height_px=sides[0], interpolation="bicubic") if sides else None


def logits_of(
    expert: Expert, items: LabelledCrops, kept: Path | None = None, progress: Steps = no_steps
) -> NDArray[np.float32]:
    """Return an expert's logit of each item, float32 [n]: the mean of its crops', or its picture's.

    kept: the folder of what was computed before. Raises ExpertError where the items are cut or kept otherwise
    than it takes them, or it gives what is no number, and OSError.
    """
    contract = expert.contract
    pictures = items.crops if contract.input == "crop" else items.pictures
    if pictures is None or (len(items) and pictures.shape[1] != contract.side_px):
        held = "no whole pictures" if pictures is None else f"pictures of {pictures.shape[1]} px"
        advice = (
            "add the expert anew"
            if contract.input == "crop"
            else f"set FORGEWATCH_MEMORY_PICTURE_PX={contract.side_px}, and import into an empty memory"
        )
        raise ExpertError(
            f"expert {contract.name} takes pictures of {contract.side_px} px, and the memory has {held}:"
            f" {advice}"
        )
    session = Session(expert.path, contract, torch.get_num_threads())
    logits = _of_pictures(session, contract, pictures, kept, progress)
    if contract.input == "resize" or not len(items):
        return logits
    sums = np.add.reduceat(logits, items.starts[:-1])
    return np.asarray(sums / np.diff(items.starts), np.float32)


def _of_pictures(
    session: Session[ExpertContract],
    contract: ExpertContract,
    pictures: NDArray[np.uint8] | StoredRows,
    kept: Path | None,
    progress: Steps,
) -> NDArray[np.float32]:
    """Return the logit of each picture, float32 [n], kept under the digests of both once it was computed."""
    path = None if kept is None else kept / contract.digest[:32]
    known, every = _read(path, contract.digest), list[bytes]()
    written = len(known)
    for first in range(0, len(pictures), _AT_ONCE):
        some = pictures[first : first + _AT_ONCE]
        keys = [hashlib.sha256(np.ascontiguousarray(picture).data).digest() for picture in some]
        every += keys
        if missing := {key: at for at, key in enumerate(keys) if key not in known}:
            logits = session.score({PICTURES: some[list(missing.values())]})[LOGIT]
            if not np.isfinite(logits).all():
                raise ExpertError(f"expert {contract.name} gives a logit that is no number: remove it")
            known |= dict(zip(missing, logits, strict=True))
        enough = 1 if len(every) == len(pictures) else _WRITTEN_AFTER
        if path is not None and is_first() and len(known) - written >= enough:
            body = b"".join([*known, np.array([*known.values()], "<f4").tobytes()])
            write_durably(path, _checksum(contract.digest, body) + body)
            written = len(known)
        progress(len(every), len(pictures))
    return np.array([known[key] for key in every], np.float32)


def _read(path: Path | None, digest: str) -> dict[bytes, np.float32]:
    """Return an expert's kept logits; a file that is damaged, or another expert's, holds nothing."""
    if path is None or not path.is_file():
        return {}
    content = path.read_bytes()
    body = content[_DIGEST_BYTES:]
    if content[:_DIGEST_BYTES] != _checksum(digest, body):
        log.warning("expert logits computed anew", file=str(path), reason="damaged")
        return {}
    count = len(body) // (_DIGEST_BYTES + 4)
    keys = (body[_DIGEST_BYTES * at : _DIGEST_BYTES * (at + 1)] for at in range(count))
    return dict(zip(keys, np.frombuffer(body, "<f4", count, _DIGEST_BYTES * count), strict=True))


def _checksum(digest: str, body: bytes) -> bytes:
    return hashlib.sha256(digest.encode() + body).digest()


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

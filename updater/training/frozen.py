"""What a frozen model makes of whole pictures: float16 rows, each computed once ever.

A row follows from a picture's pixels and the model, and from nothing else. So it is kept under the digests of
both, in a folder for each model, by the file some hundreds of rows: all of a file is there or nothing. The
folder may be removed at any time, at the price of computing it anew.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from detector.model.backbone import Shown
from detector.model.network import PictureBranch
from detector.release.architecture import Picture
from ingest.durable import write_durably
from updater.data.stored_rows import StoredRows
from updater.training.crop_rows import by_rows
from updater.training.processes import is_first
from updater.training.weights import Weights, WeightsError, put_backbone

_FORMAT = "frozen-1"
_ROWS_A_FILE = 256
"""few enough that an interrupted run computes little again, enough to be few files"""

log = structlog.get_logger()


def picture_of(name: str, side_px: int, shown: Shown, weights: Weights) -> Picture:
    """Describe timm's model `name` with these weights, as it sees pictures of this size."""
    return Picture(
        backbone=name,
        side_px=side_px,
        mean=shown.mean,
        deviation=shown.deviation,
        weights=weights.described,
    )


def frozen_branch(picture: Picture, weights: Weights, classes: int = 1) -> PictureBranch:
    """Return a branch with these weights, and a head that says nothing yet. Raises WeightsError."""
    branch = PictureBranch(picture, classes)
    put_backbone(branch.backbone, picture.backbone, picture.side_px, weights)
    return branch


def frozen_rows(
    branch: PictureBranch,
    pictures: NDArray[np.uint8] | StoredRows,
    device: torch.device,
    kept: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> NDArray[np.float32]:
    """Return the backbone's features of whole pictures, uint8 [n, S, S, 3] → float32 [n, B].

    They are rounded to float16, kept or not, so that both are the same. kept: the folder of what was computed
    before; None for nowhere. Raises WeightsError where a model gives what no float16 holds, and OSError.
    """
    model, found = digest_of(branch), dict[bytes, NDArray[np.float16]]()
    every: list[bytes] = []
    places = {} if kept is None else _places(kept / model[:16])
    for first in range(0, len(pictures), _ROWS_A_FILE):
        some = pictures[first : first + _ROWS_A_FILE]
        keys = [hashlib.sha256(np.ascontiguousarray(one).data).digest() for one in some]
        every += keys
        lacking = set(keys) - found.keys()
        found |= _read({places[key] for key in lacking if key in places}, model, lacking)
        missing = list({key: at for at, key in enumerate(keys) if key not in found}.values())
        before = len(every) - len(missing)

        def say(done: int, _: int, before: int = before) -> None:
            progress(before + done, len(pictures))

        if missing:
            made = by_rows(branch.to(device).features, some[missing], device, say)
            rows = _rounded(torch.as_tensor(made[:]).cpu().numpy(), branch)
            of = [keys[at] for at in missing]
            found |= dict(zip(of, rows, strict=True))
            if kept is not None and is_first():
                _write(kept / model[:16], model, of, rows)
        progress(len(every), len(pictures))
    width = branch.head.in_features
    return np.array([found[key] for key in every], np.float32).reshape(len(every), width)


def digest_of(branch: PictureBranch) -> str:
    """Return the SHA-256, hexadecimal, of all that a row follows from but the picture."""
    total = hashlib.sha256(branch.picture.model_dump_json(exclude={"weights"}).encode())
    for name, value in sorted(branch.backbone.state_dict().items()):
        total.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        total.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return total.hexdigest()


def _rounded(rows: NDArray[np.float32], branch: PictureBranch) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        rounded = rows.astype(np.float16)
    if not np.isfinite(rounded).all():
        raise WeightsError(
            f"{branch.picture.backbone} gives numbers that are none or beyond 65504 with weights of"
            f" {branch.picture.weights}: take other weights, or another model"
        )
    return rounded


def _write(folder: Path, model: str, keys: list[bytes], rows: NDArray[np.float16]) -> None:
    named = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)
    # One entry: safetensors writes several in no fixed order.
    metadata = {"frozen": " ".join([_FORMAT, model, _checksum(named, rows)])}
    path = folder / f"{hashlib.sha256(named.data).hexdigest()[:32]}.safetensors"
    write_durably(path, save({"keys": named, "rows": np.ascontiguousarray(rows)}, metadata))


def _places(folder: Path) -> dict[bytes, Path]:
    """Return in which file each row lies, by its picture's digest; a damaged file counts as absent."""
    places: dict[bytes, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "numpy") as file:
                places |= {key.tobytes(): path for key in file.get_tensor("keys")}
        except (OSError, SafetensorError):
            log.warning("frozen outputs computed anew", file=str(path), reason="damaged")
    return places


def _read(paths: set[Path], model: str, wanted: set[bytes]) -> dict[bytes, NDArray[np.float16]]:
    """Return the rows that are there; a file that is damaged or of another model counts as absent."""
    found: dict[bytes, NDArray[np.float16]] = {}
    for path in sorted(paths):
        try:
            with safe_open(path, "numpy") as file:
                metadata = file.metadata() or {}
                named, rows = file.get_tensor("keys"), file.get_tensor("rows")
                keys = [key.tobytes() for key in named]
        except (OSError, SafetensorError):
            metadata, keys = {}, []
        if not keys or metadata.get("frozen") != " ".join([_FORMAT, model, _checksum(named, rows)]):
            log.warning("frozen outputs computed anew", file=str(path), reason="damaged, or of another model")
            continue
        found |= {key: row for key, row in zip(keys, rows, strict=True) if key in wanted}
    return found


def _checksum(keys: NDArray[np.uint8], rows: NDArray[np.float16]) -> str:
    total = hashlib.sha256(np.ascontiguousarray(keys).data)
    total.update(np.ascontiguousarray(rows).data)
    return total.hexdigest()

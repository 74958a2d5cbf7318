"""What a frozen model makes of whole pictures: float16 rows, each computed once ever; and their vote.

A row follows from a picture's pixels and the model, and from nothing else. So it is kept under the digests of
both, in a folder for each model, by the file some hundreds of rows: all of a file is there or nothing. The
folder may be removed at any time, at the price of computing it anew.

The vote is a linear head on these rows, which is what generalises best to generators that were not trained on
(Ojha et al. 2023, "Towards universal fake image detectors that generalize across generative models"). It is
linear discriminants of one shrunk covariance (Ledoit and Wolf 2004), which need no rate and no epochs.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from detector.model.backbone import Shown
from detector.model.network import PictureBranch
from detector.release.manifest import Picture
from ingest.durable import write_durably
from updater.data.stored_rows import StoredRows
from updater.data.training_data import LabelledCrops
from updater.measures import balanced_weights
from updater.progress import Steps, uncounted
from updater.training import schemes
from updater.training.crop_rows import by_rows
from updater.training.processes import is_first
from updater.training.step import Options
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
    progress: Steps = uncounted,
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


SHARES = (0.0, *(float(share) for share in np.geomspace(0.005, 2, 60)))
"""Of the vote in the sum of logits, beside 1 of the network's.

Discriminants of many features and few items are far surer than they are right, so that the best share may be
some hundredths: the steps grow with the share.
"""


@dataclass(frozen=True)
class Vote:
    """A linear head on a frozen model's features, times its share: what is added to a network's logits."""

    weight: Tensor
    """float32 [K, B]"""
    bias: Tensor
    """float32 [K]"""

    def on(self, items: LabelledCrops) -> Tensor:
        """Return its logits for n items with picture features, float32 [n, K], on the CPU."""
        assert items.picture_features is not None
        return torch.from_numpy(items.picture_features) @ self.weight.T + self.bias


def vote_on(branch: PictureBranch | None, items: LabelledCrops) -> Tensor | None:
    """Return the branch's logits for items with picture features, float32 [n, K]; None without a branch."""
    if branch is None:
        return None
    return Vote(branch.head.weight.detach().cpu(), branch.head.bias.detach().cpu()).on(items)


def vote_beside(
    logits: Tensor,
    train: LabelledCrops,
    held_back: LabelledCrops,
    classes: Sequence[str],
    options: Options = Options(),  # noqa: B008 - frozen
) -> Vote:
    """Fit the vote to the training items, and its share beside a network to items held back.

    logits: float32 [n, K], the network's for these. That one number is fitted where the gate is: neither the
    network nor the vote was trained on those items. classes: of the network, which with `options` name its
    logits. Raises ValueError where no item is held back.
    """
    if not len(held_back):
        raise ValueError("no item is held back, and the share of a vote is fitted to such: hold some back")
    names = schemes.columns(classes, options)
    of = [[names[at] for at in schemes.targets(one.families, classes, options)] for one in (train, held_back)]
    assert train.picture_features is not None
    weight, bias = fit_vote(train.picture_features, of[0], names)
    weights = balanced_weights(np.array(of[1]), np.array(held_back.groups))
    share = share_of_vote(logits.cpu(), Vote(weight, bias).on(held_back), of[1], names, weights)
    return Vote(share * weight, share * bias)


def fit_vote(
    features: NDArray[np.float32], families: Sequence[str], classes: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """Fit n items' features, [n, B]; return weight [K, B] and bias [K] of logits that are 0 on average.

    Every class counts alike, whatever its items. Of a class without any nothing is known: its logit is 0.
    """
    found = [name for name in classes if name in set(families)]
    weight, bias = np.zeros((len(classes), features.shape[1])), np.zeros(len(classes))
    if len(found) > 1:
        places = [list(classes).index(name) for name in found]
        weight[places], bias[places] = _discriminants(features, families, found)
    return torch.from_numpy(weight).float(), torch.from_numpy(bias).float()


def _discriminants(
    features: NDArray[np.float32], families: Sequence[str], classes: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    order = {name: number for number, name in enumerate(classes)}
    targets = np.array([order[name] for name in families])
    priors = np.full(len(classes), 1 / len(classes))
    fitted = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=priors)
    fitted.fit(features.astype(np.float64), targets)
    weight, bias = fitted.coef_, fitted.intercept_
    if len(classes) == 2:  # scikit-learn gives the second's logit alone, over the first's
        weight, bias = (np.concatenate([-one, one]) / 2 for one in (weight, bias))
    return weight - weight.mean(0), bias - bias.mean()


def share_of_vote(
    logits: Tensor,
    vote: Tensor,
    families: Sequence[str],
    classes: Sequence[str],
    weights: NDArray[np.float64],
) -> float:
    """Return the share of SHARES at which logits + share · vote, [n, K] each, have the least cross-entropy.

    weights: float64 [n], what each item counts. The items must be ones that neither was trained on: on its
    own training items each is surer than it is right.
    """
    order = {name: number for number, name in enumerate(classes)}
    targets = torch.tensor([order[name] for name in families])
    counts = torch.from_numpy(weights)

    def loss(share: float) -> float:
        each = torch.nn.functional.cross_entropy(logits + share * vote, targets, reduction="none")
        return float((counts * each).sum() / counts.sum())

    return min(SHARES, key=loss)

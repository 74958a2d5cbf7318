"""AugMix as OpenCIL has it: a head that answers alike for changed versions of an item.

Hendrycks et al. 2020, "AugMix: a simple data processing method to improve robustness and uncertainty". An
item's crops become (1 - m) x + m * sum_i w_i chain_i(x), w ~ Dirichlet(1, 1, 1), m ~ Beta(1, 1), each chain
one to three operations; L = CE(x, y) + 12 JS(p(x); p(x'); p(x'')) for two such versions. The versions are
drawn once and passed through the frozen network, where OpenCIL draws them for each of its ten epochs. Of
exemplars its code takes x' for x and x'' for both versions; here all items have the same loss.

OpenCIL's configuration calls torchvision's thirteen operations at their least severity, a strength of 0. So
only autocontrast, equalize and posterize (to 4 bits) change anything, and the other ten are written as what
they are, nothing. In torchvision, solarize also turns pure white black.

An operation declares its kind as the pseudo-forgeries do, and mixing is "blending": without it, one whole
chain takes the mixture's place.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor, nn

from updater.benchmark.rejection import heads
from updater.benchmark.rejection.evidence import FitSet, Score
from updater.benchmark.rejection.heads import PLAN, FineTuning
from updater.data.stored_rows import StoredRows, collect_rows
from updater.filters import to_picture

WEIGHT = 12.0
VERSIONS = 2
_CHAINS = 3
_LONGEST = 3
_MIX_KIND = "blending"
_AT_ONCE = 256

Crop = npt.NDArray[np.uint8]
Operation = Callable[[Image.Image], Image.Image]


def _nothing(image: Image.Image) -> Image.Image:
    return image


OPERATIONS: dict[str, tuple[str, Operation]] = {
    "autocontrast": ("tone", ImageOps.autocontrast),
    "equalize": ("tone", ImageOps.equalize),
    "posterize": ("quantisation", lambda image: ImageOps.posterize(image, 4)),
    **dict.fromkeys(("solarize", "brightness", "colour", "contrast"), ("tone", _nothing)),
    **dict.fromkeys(("rotate", "shear-x", "shear-y"), ("resampling", _nothing)),
    **dict.fromkeys(("translate-x", "translate-y"), ("", _nothing)),
    "sharpness": ("sharpening", _nothing),
}
"""by name: the kind of change that each is, none for a shift by whole pixels, and what it does"""


def fit(known: FitSet, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train the head."""
    versions = [torch.tensor(version.embedding) for version in known.versions]

    def loss(head: nn.Linear, items: Tensor, rows: Tensor, target: Tensor) -> Tensor:
        logits = head(rows)
        alike = jensen_shannon((logits, *(head(version[items]) for version in versions)))
        return F.cross_entropy(logits, target) + WEIGHT * alike

    return heads.fit(known, old, seed, plan, loss)


def jensen_shannon(logits: tuple[Tensor, ...]) -> Tensor:
    """Return the mean over items of JS(p_1; ...; p_v) = mean_v KL(p_v || mean of all), a scalar in nats.

    logits: v tensors float32 [M, K], p_v = softmax. The gradient reaches every logit of each.
    """
    shares = torch.stack([F.softmax(view, 1) for view in logits])
    logs = torch.stack([F.log_softmax(view, 1) for view in logits])
    middle = shares.mean(0).clamp_min(1e-7).log()
    return (shares * (logs - middle)).sum(2).mean()


def augment_all(
    rng: np.random.Generator, crops: Crop | StoredRows, without: frozenset[str]
) -> Crop | StoredRows:
    """Return another version of each crop, uint8 [N, S, S, 3], by no operation of a kind in `without`.

    What takes too much memory is on disk.
    """
    usable = [operation for kind, operation in OPERATIONS.values() if kind not in without]
    mixes = _MIX_KIND not in without
    parts = (
        np.stack([_version(rng, crop, usable, mixes) for crop in crops[at : at + _AT_ONCE]])
        for at in range(0, len(crops), _AT_ONCE)
    )
    return collect_rows(parts) if len(crops) else crops


def _version(rng: np.random.Generator, crop: Crop, usable: Sequence[Operation], mixes: bool) -> Crop:
    if not mixes:
        return _chain(rng, crop, usable)
    weights, share = rng.dirichlet(np.ones(_CHAINS)), rng.beta(1, 1)
    mixture = (1 - share) * crop
    for weight in weights:
        mixture += share * weight * _chain(rng, crop, usable)
    return to_picture(mixture.astype(np.float32))


def _chain(rng: np.random.Generator, crop: Crop, usable: Sequence[Operation]) -> Crop:
    image = Image.fromarray(crop)
    for number in rng.choice(len(usable), int(rng.integers(1, _LONGEST + 1))):
        image = usable[number](image)
    return np.asarray(image)

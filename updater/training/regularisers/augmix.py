"""AugMix: the same answer for what chains of augmentations make of an item (Hendrycks et al. 2020).

"AugMix: a simple data processing method to improve robustness and uncertainty". An item becomes
(1 - m) x + m * sum_i w_i chain_i(x), w ~ Dirichlet(1, 1, 1), m ~ Beta(1, 1), each chain one to three
operations. The loss is CE(x) + 12 * JS(p(x); p(x'); p(x'')) for two such versions.
The operations are the paper's nine, at its severity of 3 of 10; the borders are mirrored, where the paper
leaves them black: a frame gives the answer away.

OpenCIL's configuration calls torchvision's AugMix with four more operations (brightness, colour, contrast,
sharpness) at its least severity. That is a strength of 0, so that of thirteen operations only autocontrast,
equalize and posterize (to 4 bits) change anything; there, solarize also turns pure white black.

An operation declares its kinds as the pseudo-forgeries do, and mixing is "blending": without it, one
whole chain takes the mixture's place. Shifts by whole pixels tamper with nothing and are always there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from updater.data.stored_rows import StoredRows, collected
from updater.filters import to_picture

WEIGHT = 12.0
VERSIONS = 2
_CHAINS = 3
_LONGEST = 3
_SEVERITY = 3.0
_MIX_KIND = "blending"
_AT_ONCE = 256

Crop = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Augmentation:
    """One operation on uint8 [S, S, 3] of a strength 0..1, and the kinds that it belongs to."""

    kinds: frozenset[str]
    apply: Callable[[np.random.Generator, Crop, float], Crop]


def augment(
    rng: np.random.Generator, crops: Crop, without: frozenset[str], *, as_opencil: bool = False
) -> Crop:
    """Return another version of each crop, uint8 [N, S, S, 3], by no operation whose kinds meet `without`.

    as_opencil: by OpenCIL's operations at its severity, in place of the paper's.
    """
    offered = AUGMENTATIONS | MORE_OF_OPENCIL if as_opencil else AUGMENTATIONS
    usable = [one for one in offered.values() if not one.kinds & without]
    severity = 0.0 if as_opencil else _SEVERITY
    return np.stack([_augmented(rng, crop, usable, severity, _MIX_KIND not in without) for crop in crops])


def augment_all(
    rng: np.random.Generator, crops: Crop | StoredRows, without: frozenset[str], *, as_opencil: bool = False
) -> Crop | StoredRows:
    """Do the same with any number of crops: what takes too much memory is on disk."""
    starts = range(0, len(crops), _AT_ONCE)
    parts = (augment(rng, crops[at : at + _AT_ONCE], without, as_opencil=as_opencil) for at in starts)
    return collected(parts) if len(crops) else crops


def jensen_shannon(logits: tuple[Tensor, ...]) -> Tensor:
    """Return the mean over items of JS(p_1; ...; p_v) = mean_v KL(p_v || mean of all), a scalar in nats.

    logits: v tensors float32 [M, K], p_v = softmax. The gradient reaches every logit of each.
    """
    shares = torch.stack([F.softmax(one, 1) for one in logits])
    logs = torch.stack([F.log_softmax(one, 1) for one in logits])
    middle = shares.mean(0).clamp_min(1e-7).log()
    return (shares * (logs - middle)).sum(2).mean()


def _augmented(
    rng: np.random.Generator, crop: Crop, usable: Sequence[Augmentation], severity: float, mixes: bool
) -> Crop:
    if not mixes:
        return _chain(rng, crop, usable, severity)
    weights, share = rng.dirichlet(np.ones(_CHAINS)), rng.beta(1, 1)
    mixture = (1 - share) * crop
    for weight in weights:
        mixture += share * weight * _chain(rng, crop, usable, severity)
    return to_picture(mixture.astype(np.float32))


def _chain(rng: np.random.Generator, crop: Crop, usable: Sequence[Augmentation], severity: float) -> Crop:
    for number in rng.choice(len(usable), int(rng.integers(1, _LONGEST + 1))):
        crop = usable[number].apply(rng, crop, rng.uniform(0.1, severity) / 10 if severity else 0.0)
    return crop


def _autocontrast(_: np.random.Generator, crop: Crop, strength: float) -> Crop:
    return np.asarray(ImageOps.autocontrast(Image.fromarray(crop)))


def _equalize(_: np.random.Generator, crop: Crop, strength: float) -> Crop:
    return np.asarray(ImageOps.equalize(Image.fromarray(crop)))


def _posterize(_: np.random.Generator, crop: Crop, strength: float) -> Crop:
    return np.asarray(ImageOps.posterize(Image.fromarray(crop), 4 - int(4 * strength)))


def _solarize(_: np.random.Generator, crop: Crop, strength: float) -> Crop:
    return np.asarray(ImageOps.solarize(Image.fromarray(crop), 256 - int(256 * strength)))


def _rotate(rng: np.random.Generator, crop: Crop, strength: float) -> Crop:
    angle = np.deg2rad(30 * strength) * rng.choice([-1, 1])
    return _affine(crop, (np.cos(angle), np.sin(angle), -np.sin(angle), np.cos(angle)))


def _shear_x(rng: np.random.Generator, crop: Crop, strength: float) -> Crop:
    return _affine(crop, (1, 0.3 * strength * rng.choice([-1, 1]), 0, 1))


def _shear_y(rng: np.random.Generator, crop: Crop, strength: float) -> Crop:
    return _affine(crop, (1, 0, 0.3 * strength * rng.choice([-1, 1]), 1))


def _translate_x(rng: np.random.Generator, crop: Crop, strength: float) -> Crop:
    return _shifted(crop, 0, _pixels(rng, crop, strength))


def _translate_y(rng: np.random.Generator, crop: Crop, strength: float) -> Crop:
    return _shifted(crop, _pixels(rng, crop, strength), 0)


def _pixels(rng: np.random.Generator, crop: Crop, strength: float) -> int:
    return round(len(crop) / 3 * strength) * int(rng.choice([-1, 1]))


def _shifted(crop: Crop, down: int, across: int) -> Crop:
    reach, side = max(abs(down), abs(across)), len(crop)
    padded = np.pad(crop, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    return padded[reach - down : reach - down + side, reach - across : reach - across + side]


_Enhancement = ImageEnhance.Brightness | ImageEnhance.Color | ImageEnhance.Contrast | ImageEnhance.Sharpness


def _enhanced(
    enhance: Callable[[Image.Image], _Enhancement],
) -> Callable[[np.random.Generator, Crop, float], Crop]:
    def apply(rng: np.random.Generator, crop: Crop, strength: float) -> Crop:
        factor = 1 + 0.9 * strength * float(rng.choice([-1, 1]))
        return np.asarray(enhance(Image.fromarray(crop)).enhance(factor))

    return apply


def _affine(crop: Crop, matrix: tuple[float, float, float, float]) -> Crop:
    """Turn or shear about the middle, bilinearly."""
    side = len(crop)
    reach = side // 4
    padded = np.pad(crop, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    a, b, c, d = (float(value) for value in matrix)
    middle = len(padded) / 2
    data = (a, b, middle - (a + b) * middle, c, d, middle - (c + d) * middle)
    turned = Image.fromarray(padded).transform(
        (len(padded), len(padded)), Image.Transform.AFFINE, data, Image.Resampling.BILINEAR
    )
    return np.asarray(turned)[reach : reach + side, reach : reach + side]


_TONE, _RESAMPLING = frozenset({"tone"}), frozenset({"resampling"})
AUGMENTATIONS: dict[str, Augmentation] = {
    "autocontrast": Augmentation(_TONE, _autocontrast),
    "equalize": Augmentation(_TONE, _equalize),
    "posterize": Augmentation(frozenset({"quantisation"}), _posterize),
    "solarize": Augmentation(_TONE, _solarize),
    "rotate": Augmentation(_RESAMPLING, _rotate),
    "shear-x": Augmentation(_RESAMPLING, _shear_x),
    "shear-y": Augmentation(_RESAMPLING, _shear_y),
    "translate-x": Augmentation(frozenset(), _translate_x),
    "translate-y": Augmentation(frozenset(), _translate_y),
}
MORE_OF_OPENCIL: dict[str, Augmentation] = {
    "brightness": Augmentation(_TONE, _enhanced(ImageEnhance.Brightness)),
    "colour": Augmentation(_TONE, _enhanced(ImageEnhance.Color)),
    "contrast": Augmentation(_TONE, _enhanced(ImageEnhance.Contrast)),
    "sharpness": Augmentation(frozenset({"sharpening"}), _enhanced(ImageEnhance.Sharpness)),
}

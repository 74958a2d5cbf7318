"""The training of a localizer: on real pictures, pseudo-forgeries of them, and known masks where there are.

Each step sees pictures anew, some real, most forged in part; they are made in threads, while the steps before
are trained. The loss is the cross-entropy of each cell with how much of it is forged, of both looks.

Pictures get other colours, contrast and grain, the same for every pixel, forged or not. So a localizer takes
none of these for a forgery.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as _cross_entropy

from detector.model.localizer import Localizer
from detector.release.crop_graphs import CELL_PX
from updater.data.training_data import LabelledCrops
from updater.draws import SeedPurpose
from updater.filters import Picture, to_picture
from updater.outliers.local_forgeries import forge_locally, process_crops, saved_again
from updater.progress import Steps, no_steps
from updater.training.batches import ahead
from updater.training.fit import Descent, by_schedule, fit

STEPS = 4500
PICTURES = 8
"""of a step"""
MOST_CROPS = 2
"""of a picture in a step: of more, so many are drawn"""
REAL_SHARE = 0.3
PSEUDO_SHARE = 0.4
"""of the pictures of a step, where masks are known too"""
FORGED_AREA = (0.04, 0.6)
"""share of a picture that a pseudo-forgery covers: beyond a half, so that not the smaller part is forged"""
_RATE, _RISE, _DECAY = 4e-3, 0.1, 1e-2
_OF_FIRST_LOOK = 0.5
"""weight of its loss"""


Batch = tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.int64]]
"""crops [N, S, S, 3], how much of each of their cells is forged [N, S / 8, S / 8], and the picture of each"""


@dataclass(frozen=True)
class MaskedCrops:
    """Pictures with the known places of their forgeries."""

    items: LabelledCrops
    cells: NDArray[np.float32]
    """[T, S / 8, S / 8] in 0..1, by row of the items' crops: how much of each cell is forged"""


def train_localizer(
    reals: LabelledCrops,
    known: MaskedCrops | None,
    *,
    without: frozenset[str] = frozenset(),
    seed: int = 0,
    device: torch.device | None = None,
    steps: int = STEPS,
    progress: Steps = no_steps,
) -> Localizer:
    """Return a localizer in evaluation mode. The global random state is left as it was.

    reals: real pictures, which pseudo-forgeries are made of; known: pictures with masks, reals among them;
    without: kinds of operations that pseudo-forgeries are not to have. Raises ValueError where there are no
    reals, or no operation is left.
    """
    if not len(reals):
        raise ValueError("a localizer learns from real pictures, and there are none")
    device = device or torch.device("cpu")

    def draw_batch(step: int) -> Batch:
        return _batch(SeedPurpose.LOCALIZER_BATCHES.generator(seed, step), reals, known, without)

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        network = Localizer().to(memory_format=torch.channels_last).to(device).train()
        optimiser = torch.optim.AdamW(network.parameters(), _RATE, weight_decay=_DECAY)
        rises_and_falls = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, steps, pct_start=_RISE)
        fit(
            network,
            lambda numbers: ahead(lambda run: list(map(draw_batch, run)), numbers, device.type == "cuda"),
            lambda batch: _loss(network, batch, device),
            Descent(optimiser, steps, by_schedule(rises_and_falls)),
            progress=progress,
        )
    network = network.cpu().to(memory_format=torch.contiguous_format)
    return network.eval().requires_grad_(False)


def _loss(network: Localizer, batch: Batch, device: torch.device) -> Tensor:
    crops, cells, of_picture = batch
    pixels = torch.from_numpy(crops).to(device).permute(0, 3, 1, 2).float()
    # The residuals of what lies in the last bits need every bit; what comes behind does not.
    residuals = network.residuals(pixels)
    with _fewer_bits(device):
        guess, answer = network.both(residuals, torch.from_numpy(of_picture).to(device))
    true = torch.from_numpy(cells).to(device)
    return _cross_entropy(answer.float(), true) + _OF_FIRST_LOOK * _cross_entropy(guess.float(), true)


def pseudo_forged(
    rng: np.random.Generator, crops: NDArray[np.uint8], without: frozenset[str]
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return one picture's crops, uint8 [N, S, S, 3], forged in part, and their cells [N, S / 8, S / 8]."""
    forged, masks = forge_locally(rng, crops, without, FORGED_AREA)
    side = masks.shape[1] // CELL_PX
    cells = masks.reshape(-1, side, CELL_PX, side, CELL_PX).mean((2, 4))
    return saved_again(rng, forged, without), cells


def _fewer_bits(device: torch.device) -> AbstractContextManager[object]:
    """Return a context of bfloat16 where the device computes it faster; of full precision elsewhere."""
    cuda = device.type == "cuda"
    faster = torch.cuda.is_bf16_supported() if cuda else torch.cpu._is_amx_tile_supported()
    return torch.autocast(device.type, torch.bfloat16, enabled=faster)


def _batch(
    rng: np.random.Generator, reals: LabelledCrops, known: MaskedCrops | None, without: frozenset[str]
) -> Batch:
    pictures = []
    for _ in range(PICTURES):
        if known is not None and rng.random() >= PSEUDO_SHARE:
            rows = _rows(rng, known.items)
            crops, cells = known.items.crops[rows], known.cells[rows]
        else:
            crops = process_crops(rng, reals.crops[_rows(rng, reals)], without)
            crops = looked_otherwise(rng, crops, without)
            if rng.random() < REAL_SHARE:
                side = crops.shape[1] // CELL_PX
                crops = saved_again(rng, crops, without)
                cells = np.zeros((len(crops), side, side), np.float32)
            else:
                crops, cells = pseudo_forged(rng, crops, without)
        pictures.append(_turn_at_random(rng, crops, cells))
    of_picture = np.repeat(np.arange(PICTURES), [len(crops) for crops, _ in pictures])
    crops, cells = (np.concatenate(part) for part in zip(*pictures, strict=True))
    return crops, cells, of_picture


def _rows(rng: np.random.Generator, items: LabelledCrops) -> NDArray[np.int64]:
    """Draw a picture, and at most MOST_CROPS of its rows, in their order."""
    item = int(rng.integers(len(items)))
    rows = np.arange(items.starts[item], items.starts[item + 1])
    return np.sort(rng.permutation(rows)[:MOST_CROPS])


def _turn_at_random(
    rng: np.random.Generator, crops: NDArray[np.uint8], cells: NDArray[np.float32]
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Mirror and transpose a picture's crops and cells alike, by chance."""
    for axis in (1, 2):
        if rng.random() < 0.5:
            crops, cells = np.flip(crops, axis), np.flip(cells, axis)
    if rng.random() < 0.5:
        crops, cells = crops.swapaxes(1, 2), cells.swapaxes(1, 2)
    return crops, cells


NOISE_KIND, TONE_KIND = "noise", "tone"
_EXCHANGED_SHARE, _GREY_SHARE, _TONE_SHARE, _NOISE_SHARE = 0.5, 0.15, 0.5, 0.3
_CONTRAST = (0.5, 1.2)
_NOISE = (0.3, 3.0)
"""standard deviation, in levels"""


def looked_otherwise(rng: np.random.Generator, crops: Picture, without: frozenset[str]) -> Picture:
    """Return one picture's crops, uint8 [N, S, S, 3], with other colours, contrast and grain, each by chance.

    Colours are exchanged or taken away; contrast is 0.5 to 1.2 of what it was; noise of up to 3 levels comes
    on top. Neither noise nor tone where that kind is in `without`.
    """
    if rng.random() < _EXCHANGED_SHARE:
        crops = crops[..., rng.permutation(3)]
    if rng.random() < _GREY_SHARE:
        crops = np.repeat(to_picture(crops.mean(3, keepdims=True, dtype=np.float32)), 3, 3)
    if TONE_KIND not in without and rng.random() < _TONE_SHARE:
        crops = _tone_at_random(rng, crops)
    if NOISE_KIND not in without and rng.random() < _NOISE_SHARE:
        channels = 3 if rng.random() < 0.5 else 1
        grain = rng.standard_normal((*crops.shape[:3], channels), dtype=np.float32)
        crops = to_picture(crops + np.float32(rng.uniform(*_NOISE)) * grain)
    return crops


def _tone_at_random(rng: np.random.Generator, crops: Picture) -> Picture:
    contrast = rng.uniform(*_CONTRAST)
    # What is lost at the ends of the scale is lost at both alike; where there is room, it lies anywhere.
    darkest = rng.uniform(0, 255 * (1 - contrast)) if contrast < 1 else 127.5 * (1 - contrast)
    levels = to_picture(np.arange(256, dtype=np.float32) * np.float32(contrast) + np.float32(darkest))
    toned: Picture = levels[crops]
    return toned

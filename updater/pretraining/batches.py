"""Batches of real crops and of the same crops as fresh generators would have made them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from updater.outliers.simulated_generator import simulated_generator
from updater.outliers.source_compression import Saved, save, saved_as
from updater.pretraining.media import UnlabelledMedia
from updater.training.crop_rows import as_images

_GENERATORS, _PICTURES = 4, 8
_QUALITIES = (75, 97)


class Batch(NamedTuple):
    """Levels 0..255, float32 [N, 3, S, S], and the class of each crop, int64 [N]: 0 real, else the draw."""

    images: Tensor
    classes: Tensor


@dataclass
class Batches:
    """Batches of some files of a folder. A batch follows from the seed and its number alone."""

    media: UnlabelledMedia
    files: NDArray[np.int64]
    """which files are drawn from"""
    autoencoders: Sequence[Callable[[Tensor], Tensor]]
    seed: int
    device: torch.device
    _saved: dict[int, Saved | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Weigh the sources alike."""
        _, of = np.unique(np.array(self.media.sources)[self.files], return_inverse=True)
        weight = 1 / np.bincount(of)[of]
        self._chance = weight / weight.sum()
        self._starts = np.searchsorted(self.media.owners, np.arange(len(self.media.sources) + 1))

    def draw(self, number: int) -> Batch:
        """Return real crops, the same by each of some fresh generators, and as many other real crops.

        Each is saved as its file was. Where that does not show, a quality is drawn and the real crop is
        saved so too: else how often a crop was compressed would tell them apart.
        """
        rng = np.random.default_rng([self.seed, 2, number])
        files = rng.choice(self.files, 2 * _PICTURES, p=self._chance)
        crops = np.stack([self._crop(rng, int(file)) for file in files])
        how = [self._how(int(file)) for file in files]
        drawn = [Saved(int(rng.integers(*_QUALITIES)), 2) for _ in files]
        real = [crop if known else save(crop, q) for crop, known, q in zip(crops, how, drawn, strict=True)]
        parts, classes = [np.stack(real)], [0] * len(files)
        seen = as_images(crops[:_PICTURES], self.device)
        for draw in range(1, _GENERATORS + 1):
            generator = simulated_generator(rng, self.autoencoders, crops.shape[1], self.device)
            with torch.no_grad():
                made = generator(seen).round().permute(0, 2, 3, 1).to("cpu", torch.uint8).numpy()
            pairs = zip(made, how[:_PICTURES], drawn, strict=False)
            parts.append(np.stack([save(crop, known or q) for crop, known, q in pairs]))
            classes += [draw] * _PICTURES
        whole = np.concatenate(parts)
        return Batch(as_images(whole, self.device), torch.tensor(classes, device=self.device))

    def _crop(self, rng: np.random.Generator, file: int) -> NDArray[np.uint8]:
        crop: NDArray[np.uint8] = self.media.crops[rng.integers(self._starts[file], self._starts[file + 1])]
        return crop

    def _how(self, file: int) -> Saved | None:
        if file not in self._saved:
            self._saved[file] = saved_as(self.media.crops[self._starts[file]])
        return self._saved[file]

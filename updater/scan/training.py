"""The head over time is trained: binary cross-entropy by frame, over whole clips."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from detector.scanner import Scanner, beside_median
from updater.scan.clips import ScannedClip

EPOCHS = 40
BATCH = 16
"""clips of a step"""
_RATE, _DECAY = 2e-3, 1e-2


def train_scanner(
    clips: Sequence[ScannedClip],
    seed: int,
    *,
    epochs: int = EPOCHS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Scanner:
    """Train on clips, real ones among them; the same seed gives the same weights on one machine.

    AdamW, its rate falling as half a cosine. progress gets (epochs done, of how many). Raises ValueError
    where no frame, or every frame, is forged.
    """
    forged = [torch.from_numpy(clip.forged).float() for clip in clips]
    if not clips or not 0 < float(torch.cat(forged).mean()) < 1:
        raise ValueError("training needs forged frames and others")
    inputs = [beside_median(torch.from_numpy(clip.features)) for clip in clips]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scanner = Scanner(inputs[0].shape[1] // 2)
        scanner.standardise(torch.cat(inputs))
        optimiser = torch.optim.AdamW(scanner.parameters(), _RATE, weight_decay=_DECAY)
        rng = np.random.default_rng(seed)
        steps = epochs * math.ceil(len(clips) / BATCH)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        scanner.train()
        for epoch in range(epochs):
            order = rng.permutation(len(clips))
            for first in range(0, len(clips), BATCH):
                chosen = order[first : first + BATCH]
                batch, inside = together([inputs[i] for i in chosen])
                truth, _ = together([forged[i][:, None] for i in chosen])
                losses = F.binary_cross_entropy_with_logits(
                    scanner.logits(batch, inside), truth[..., 0], reduction="none"
                )
                loss = (losses * inside).sum() / inside.sum()
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                optimiser.step()
                falling.step()
            progress(epoch + 1, epochs)
    return scanner.eval()


def together(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Stack float32 [T_i, C] to [B, T, C], zero beyond an end; and what is inside, float32 [B, T]."""
    stacked = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    lengths = torch.tensor([len(one) for one in rows])
    inside = (torch.arange(stacked.shape[1]) < lengths[:, None]).float()
    return stacked, inside


def frame_scores(scanner: Scanner, clip: ScannedClip) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return what a scanner says of a clip's frames, float64 [T] in 0..1."""
    with torch.inference_mode():
        found = scanner(torch.from_numpy(clip.features))["frame_score"]
    scores: np.ndarray[tuple[int], np.dtype[np.float64]] = found.double().numpy()
    return scores

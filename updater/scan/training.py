"""The head over time is trained: binary cross-entropy by frame, over whole clips."""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.model.scanner import MEMBERS, Scanner, over_time
from updater.progress import Steps, uncounted
from updater.scan.clips import ScannedClip
from updater.training.fit import Descent, by_schedule, fit, in_epochs

EPOCHS = 10 * MEMBERS
"""of all members together, one after the other: each sees the clips a third as often"""
BATCH = 16
"""clips of a step"""
_RATE, _DECAY = 2e-3, 1e-2


def train_scanner(
    clips: Sequence[ScannedClip],
    seed: int,
    *,
    epochs: int = EPOCHS,
    progress: Steps = uncounted,
) -> Scanner:
    """Train on clips, real ones among them; the same seed gives the same weights on one machine.

    The members are trained one after the other, for a third of the epochs each and at least one, by AdamW,
    its rate falling as half a cosine. Raises ValueError where no frame, or every frame, is forged.
    """
    forged = [torch.from_numpy(clip.forged).float()[:, None] for clip in clips]
    if not clips or not 0 < float(torch.cat(forged).mean()) < 1:
        raise ValueError("training needs forged frames and others")
    with torch.no_grad():
        seen = [over_time(torch.from_numpy(clip.features)) for clip in clips]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scanner = Scanner(clips[0].features.shape[1])
        scanner.standardise(torch.cat(seen))
        inputs = [scanner.standard(one) for one in seen]
        rng = np.random.default_rng(seed)
        each = max(1, epochs // MEMBERS)
        for number, member in enumerate(scanner.members):

            def shown(done: int, total: int, before: int = number) -> None:
                progress(before * total + done, MEMBERS * total)

            _train(member, inputs, forged, rng, each, shown)
    return scanner.eval()


def _train(
    member: nn.Module,
    inputs: Sequence[Tensor],
    forged: Sequence[Tensor],
    rng: np.random.Generator,
    epochs: int,
    progress: Steps,
) -> None:
    """Train one head."""
    optimiser = torch.optim.AdamW(member.parameters(), _RATE, weight_decay=_DECAY)
    steps = epochs * math.ceil(len(inputs) / BATCH)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)

    def loss(chosen: Tensor) -> Tensor:
        batch, inside = together([inputs[i] for i in chosen])
        truth, _ = together([forged[i] for i in chosen])
        losses = F.binary_cross_entropy_with_logits(member(batch, inside), truth[..., 0], reduction="none")
        return (losses * inside).sum() / inside.sum()

    fit(
        member.train(),
        in_epochs(lambda: torch.from_numpy(rng.permutation(len(inputs))), BATCH, epochs),
        loss,
        Descent(optimiser, steps, by_schedule(falling)),
        progress=progress,
    )


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

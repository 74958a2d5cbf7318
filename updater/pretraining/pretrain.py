"""A network that learns what generators leave behind, from simulated ones and real media without labels.

By supervised contrast, crops of one draw of a generator come to lie together, apart from those of another
draw and from real ones of every source, which lie together too. So what is learnt is how a crop was made,
and not where it comes from or what it shows.
"""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from detector.model.network import Network
from detector.release.architecture import FEATURE_VERSION, Architecture
from updater.measures import auroc
from updater.outliers.autoencoder import train_autoencoder
from updater.pretraining.batches import Batches
from updater.pretraining.media import UnlabelledMedia
from updater.pretraining.network import Pretraining
from updater.progress import Progress
from updater.training.checkpoint import Checkpoint
from updater.training.pools import forensic_rows, rows_at
from updater.training.schedules import one_cycle
from updater.whitening import part_whitening

_AUTOENCODERS = 4
_RATE, _WEIGHT_DECAY = 2e-3, 0.02
_SAVE_INTERVAL_S = 30.0
_HELD_BACK, _LEAST_FILES = 0.1, 20
_TEST_BATCHES = 8
_WHITENED, _WHITENED_CROPS = 0.25, 2000


@dataclass(frozen=True)
class Pretrained:
    """A network, and how well it tells fresh generators from reals on files that it was not trained on."""

    network: Network
    batches: int
    auc: float | None
    """None where there were too few files to hold any back"""


def pretrain(
    media: UnlabelledMedia,
    architecture: Architecture,
    *,
    minutes: float,
    seed: int,
    device: torch.device,
    state: Path,
    progress: Progress = lambda stage, done, total: None,
) -> Pretrained:
    """Train for so many minutes, counted over interruptions: what `state` holds of the same is gone on from.

    The global random state is left as it was. Raises OSError where the state cannot be written.
    """
    train, held = _sides(len(media.sources), seed)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = Pretraining(architecture).to(device)
        crops = media.crops[np.isin(media.owners, train)]
        autoencoders = [
            train_autoencoder(
                crops,
                one,
                device,
                progress=lambda *at, one=one: progress(f"autoencoder {one + 1}", *at),
            )
            for one in range(_AUTOENCODERS)
        ]
        _whiten(model.network, media, train, device, seed, progress)
        batches = Batches(media, train, autoencoders, seed, device)
        done = _train(model, batches, 60 * minutes, _saved(state, media, architecture, seed), progress)
    tests = Batches(media, held, autoencoders, seed + 1, device)
    return Pretrained(model.network.eval(), done, _told_apart(model, tests) if len(held) else None)


def _sides(files: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng([seed, 3]).permutation(files)
    count = round(_HELD_BACK * files) if files >= _LEAST_FILES else 0
    return np.sort(order[count:]), np.sort(order[:count])


def _saved(state: Path, media: UnlabelledMedia, architecture: Architecture, seed: int) -> Checkpoint:
    digest = hashlib.sha256(f"{FEATURE_VERSION} {seed} {architecture!r}".encode())
    digest.update(repr(media.sources).encode() + media.owners.tobytes() + media.crops.tobytes())
    return Checkpoint(state, digest.hexdigest(), ("pretrain",))


def _whiten(
    network: Network,
    media: UnlabelledMedia,
    files: np.ndarray,
    device: torch.device,
    seed: int,
    progress: Progress,
) -> None:
    """Set the coordinates in which forensic features are read, as a release 0 without weights does."""
    if network.forensics is None:
        return
    rows = np.flatnonzero(np.isin(media.owners, files))
    rows = np.sort(np.random.default_rng([seed, 4]).permutation(rows)[:_WHITENED_CROPS])
    features = forensic_rows(network, media.crops[rows], device, lambda *at: progress("features", *at))
    sources = np.array(media.sources)[media.owners[rows]]
    found = rows_at(features, torch.arange(len(rows))).cpu().numpy()
    mean, whitening = part_whitening(found, sources, _WHITENED)
    whitening /= ((found - mean) @ whitening).std(0).mean() + 1e-6
    network.feature_mean.copy_(torch.from_numpy(mean))
    network.feature_whitening.copy_(torch.from_numpy(whitening))


def _train(
    model: Pretraining, batches: Batches, budget_s: float, saved: Checkpoint, progress: Progress
) -> int:
    optimiser = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=_WEIGHT_DECAY)
    number = saved.resume("pretrain", model, optimiser) or 0
    model.train()
    written_s = before = time.monotonic()
    try:
        while (trained_s := float(model.trained_s)) < budget_s:
            progress("pretrain, seconds", round(trained_s), round(budget_s))
            torch.manual_seed(number)
            for group in optimiser.param_groups:
                group["lr"] = _RATE * one_cycle(trained_s / budget_s)
            loss = model.loss(batches.draw(number))
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimiser.step()
            number, now = number + 1, time.monotonic()
            model.trained_s += now - before
            before = now
            if now - written_s > _SAVE_INTERVAL_S:
                saved.save("pretrain", number, model, optimiser)
                written_s = now
    finally:
        saved.save("pretrain", number, model, optimiser)
    return number


def _told_apart(model: Pretraining, batches: Batches) -> float:
    model.eval()
    generated, real = [], []
    with torch.no_grad():
        for number in range(_TEST_BATCHES):
            images, classes = batches.draw(number)
            logit = model.output(images).pseudo_logit
            generated.append(logit[classes > 0].cpu().numpy())
            real.append(logit[classes == 0].cpu().numpy())
    return auroc(np.concatenate(generated), np.concatenate(real))

"""The training loop that the learners share: batches of items, one loss, one rate that rises and falls."""

import hashlib
import json
from collections.abc import Callable, Generator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from detector.model.network import Network
from detector.release.manifest import FEATURE_VERSION
from updater import draws
from updater.data.stored_rows import StoredRows, joined_rows, rows_of_items
from updater.measures import part_whitening
from updater.outliers.exposure import Exposure, expose
from updater.training import schemes
from updater.training.batches import Batch as Batch
from updater.training.batches import PreparedBatch, ahead, at_once, draw, pass_batch, ready_images, ready_rows
from updater.training.batches import TrainingSet as TrainingSet
from updater.training.crop_rows import Rows, crop_features, forensic_rows, pool_rows
from updater.training.fit import Checkpoint, Descent, TrainingStage, fit, one_thread, seed_draws
from updater.training.step import SCHEDULES, Recipe, Step, load_trained
from updater.training.weights import put

_WHITENED = 0.25
"""how far the features that a network reads are whitened: all the way, it learns a known family from few
items better, and sees less of an unknown one"""
_WHITENED_ON = 20_000
"""items, evenly spaced where there are more: a covariance of some hundred features needs no more"""


Loss = Callable[[Batch], Tensor]
Update = Callable[[Network, torch.optim.Optimizer], None]
"""changes the parameters by their gradients, once a batch"""


def training_set(step: Step, network: Network) -> TrainingSet:
    """Make the pseudo-forgeries of a step and compute the forensic features of every crop."""
    train, options = step.train, step.options
    names = schemes.columns(step.classes, options)
    count = round(len(train) * step.recipe.pseudo_share) if options.exposure != "none" else 0
    targets = schemes.targets(train.families, step.classes, options) + [len(names)] * count
    crops, starts = train.crops, train.starts
    features = crop_features(network, train, step.device, lambda *at: step.progress("features", *at))
    if count:
        outliers = expose(
            train, count, step.without, step.seed, lambda *at: step.progress("pseudo-forgeries", *at)
        )
        crops = joined_rows([crops, outliers.crops])
        starts = np.concatenate([starts, starts[-1] + outliers.starts[1:]])
        forged = forensic_rows(
            network, outliers.crops, step.device, lambda *at: step.progress("features of these", *at)
        )
        features = joined_rows([features, forged])
    exposure = Exposure(train, step.without) if count else None
    return TrainingSet(np.array(targets), schemes.fake_columns(names), crops, starts, features, exposure)


@dataclass(frozen=True)
class Training:
    """One step's training: the same random draws and the same checkpoint for all its stages."""

    step: Step
    data: TrainingSet
    saved: Checkpoint

    def run(
        self,
        stage: str,
        network: Network,
        loss: Loss,
        weights: npt.NDArray[np.float64],
        *,
        steps: int,
        rate: float,
        rows: Rows | None = None,
        below: float = 1.0,
        update: Update = lambda network, optimiser: optimiser.step(),
    ) -> None:
        """Train the whole network on crops, or, given rows, the layers above the backbone on those.

        weights: float64 [n], the chance of each item to be drawn. rows: float32 [T, B], the backbone's
        features of each crop, computed once. below: the backbone's learning rate as a share of the rate.
        """
        step, recipe = self.step, self.step.recipe
        above, inside = _trained_parameters(network)
        groups = [(above, 1.0)] if rows is not None else [(above, 1.0), (inside, below)]
        optimiser = optimiser_of(
            recipe, rate, [{"params": own, "share": share} for own, share in groups if own]
        )
        share_of_peak = SCHEDULES[recipe.schedule]

        def set_rate(number: int) -> None:
            for group in optimiser.param_groups:
                group["lr"] = group["share"] * rate * share_of_peak(number / steps)

        def loss_of(ready: PreparedBatch) -> Tensor:
            # Every step has its own random state, so that a resumed run repeats an unbroken one.
            seed_draws(ready.drawn.torch_seed, step.device)
            return loss(pass_batch(step, self.data, network, ready))

        network.train()
        if rows is not None:
            network.backbone.eval()
        with nullcontext() if rows is None else one_thread(step.device):
            fit(
                network,
                lambda numbers: self.batches(network, weights, numbers, rows),
                loss_of,
                Descent(
                    optimiser,
                    steps,
                    set_rate,
                    longest=5.0,
                    shared=inside if rows is None else (),
                    update=partial(update, network),
                ),
                TrainingStage(self.saved, stage),
                partial(step.progress, stage),
            )

    def batches(
        self, network: Network, weights: npt.NDArray[np.float64], numbers: range, rows: Rows | None
    ) -> Generator[PreparedBatch, None, None]:
        """Yield the batches of these numbers, ready for the network."""
        step, data, chances = self.step, self.data, draws.cumulative(weights)
        if rows is not None:
            return at_once(
                lambda number: ready_rows(step, data, draw(step, data, chances, number, False), rows), numbers
            )

        def images(run: range) -> list[PreparedBatch]:
            return ready_images(step, data, network, [draw(step, data, chances, n, True) for n in run])

        return ahead(images, numbers, step.device.type == "cuda")


def optimiser_of(recipe: Recipe, rate: float, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Return the recipe's optimizer of groups of parameters, as torch takes them."""
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=0.9, weight_decay=recipe.weight_decay)
    adam = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return adam(groups, lr=rate, weight_decay=recipe.weight_decay)


def _trained_parameters(network: Network) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters that are trained: those above the backbone, and the backbone's."""
    named = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    inside = [parameter for name, parameter in named if name.startswith("backbone.")]
    return [parameter for name, parameter in named if not name.startswith("backbone.")], inside


def item_weights(targets: npt.NDArray[np.int64], power: float) -> npt.NDArray[np.float64]:
    """Return the chance of each item to be drawn: power 1 makes classes equal, 0 items."""
    weights = (1 / np.bincount(targets)[targets]) ** power
    return np.asarray(weights / weights.sum())


def start(step: Step) -> Network:
    """Return a network for the step's classes on its device: a new one, or the previous one grown.

    A new one begins with the step's weights, if it has some. Raises WeightsError where they do not fit.
    Known logits keep their weights, those of the head that was trained; new ones begin at random. Raises
    ValueError for a previous network of task tokens.
    """
    if step.previous is not None and step.previous.network.architecture.tasks is not None:
        raise ValueError("the previous network is of task tokens: only dytox goes on from it")
    network = Network(step.architecture, len(schemes.columns(step.classes, step.options)))
    if step.previous is None:
        if step.start_from is not None:
            put(network, step.start_from, step.classes)
        return network.to(step.device)
    old = step.previous.network
    state = {k: v for k, v in old.state_dict().items() if not k.startswith("head.")}
    network.load_state_dict(state, strict=False)
    with torch.no_grad():
        for name, values in load_trained(step.previous).head.state_dict().items():
            grown = network.head.state_dict()[name]
            (grown[: len(values)] if values.ndim else grown).copy_(values)
    return network.to(step.device)


def whiten(network: Network, step: Step, data: TrainingSet) -> None:
    """Set the coordinates in which the network reads forensic features, from the step's items.

    Directions along which all media vary much are drawn in a little, so that they are not learnt first for
    that alone. Single crops scatter by 1 on average.
    """
    if network.forensics is None:
        return
    items = np.arange(len(step.train))
    if len(items) > _WHITENED_ON:
        items = np.linspace(0, items[-1], _WHITENED_ON).astype(np.int64)
    rows, starts = rows_of_items(data.starts, items)
    crops = data.features[rows]
    features = pool_rows(torch.from_numpy(crops), starts).numpy()
    mean, whitening = part_whitening(features, np.array(step.train.families)[items], _WHITENED)
    whitening /= ((crops - mean) @ whitening).std(0).mean() + 1e-6
    network.feature_mean.copy_(torch.from_numpy(mean))
    network.feature_whitening.copy_(torch.from_numpy(whitening))


def checkpoint(step: Step, method: str, stages: tuple[str, ...]) -> Checkpoint:
    """Return the place where a step is gone on from, bound to everything that it is made from."""
    return Checkpoint(step.checkpoint, _identity(step, method), stages)


def _identity(step: Step, method: str) -> str:
    train, previous = step.train, step.previous
    facts = [train.ids, train.families, step.classes, method, FEATURE_VERSION]
    facts += [repr(fact) for fact in (step.architecture, step.options, step.recipe, step.seed)]
    if step.start_from is not None:
        facts.append(step.start_from.digest)
    digest = hashlib.sha256(json.dumps([*facts, sorted(step.without)]).encode())
    digest.update(train.starts.tobytes())
    crops = train.crops
    digest.update(crops.digest.encode() if isinstance(crops, StoredRows) else crops.tobytes())
    if previous is not None:
        digest.update(json.dumps(previous.classes).encode())
        for name, value in [*previous.network.state_dict().items(), *sorted(previous.kept.items())]:
            digest.update(name.encode() + value.cpu().numpy().tobytes())
    return digest.hexdigest()

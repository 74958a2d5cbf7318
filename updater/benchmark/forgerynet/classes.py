"""Telling pictures or videos apart: training, test and figures, whatever the network is shown of them."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from updater.benchmark.data.entries import Entry
from updater.benchmark.data.tasks import LayoutError
from updater.benchmark.forgerynet.families import KINDS, class_names, class_of, in_group
from updater.benchmark.forgerynet.job import Job
from updater.benchmark.forgerynet.recipes import Recipe
from updater.benchmark.forgerynet.sights import Sight
from updater.benchmark.forgerynet.training import Example, Source, as_input, cross_entropy, train
from updater.benchmark.measures import images
from updater.benchmark.report.outcome import Outcome, Table, Values, values
from updater.training.loop import item_weights
from updater.training.precision import half_precision
from updater.training.processes import by_share

_AHEAD = 32
"""files that are loaded ahead while a network is asked"""


@dataclass(frozen=True)
class Views:
    """What is shown of a file: uint8 RGB [..., S, S, 3]."""

    training: Callable[[Sight, np.random.Generator], NDArray[np.uint8]]
    """one view, by chance"""
    test: Callable[[Sight], NDArray[np.uint8]]
    """[n, ..., S, S, 3]: the answer is the mean of what is said of each"""


@dataclass(frozen=True)
class Prepared:
    """Files of both sides, and how a network is made and shown them."""

    train_on: Sequence[Sight]
    test_on: Sequence[Sight]
    make: Callable[[], nn.Module]
    views: Views
    recipe: Recipe
    notes: tuple[str, ...]


def measure(job: Job, prepared: Prepared) -> Outcome:
    """Train, test, and return the figures. Raises LayoutError where a side lacks reals or forgeries."""
    train_on, test_on, make = prepared.train_on, prepared.test_on, prepared.make
    views, recipe, notes = prepared.views, prepared.recipe, prepared.notes
    choices = job.choices
    if choices.protocol == "cross":
        return Outcome(table=_table(job, train_on, test_on, make, views, recipe), notes=notes)
    trained, tested = train_on, test_on
    if choices.train_on:
        trained = _with_group(job, train_on, choices.train_on[0])
    network = _trained(job, trained, make, views, recipe, "all")
    p = scores(network, tested, views, recipe, job)
    y = _classes(job, [one.entry for one in tested])
    names = class_names(job.kinds, choices.classes)
    families = {
        family: _figures(p, y, np.array([one.entry.family in (family, "real") for one in tested]))
        for family in job.kinds
        if any(one.entry.family == family for one in tested)
    }
    return Outcome(
        figures=values(images.figures(p, y), len(y)),
        families=families,
        about={
            "parameters": sum(one.numel() for one in network.parameters()),
            "absent": [names[number] for number in images.absent(p, y)],
            "trained_on": len(trained),
            "tested_on": len(tested),
            "recipe": asdict(recipe) | {"falls": list(recipe.falls)},
        },
        notes=notes,
    )


def scores(
    network: nn.Module, sights: Sequence[Sight], views: Views, recipe: Recipe, job: Job
) -> NDArray[np.float64]:
    """Return the probabilities of each file's classes, float64 [n, K]. Several processes share the files."""

    def of_share(places: Tensor) -> Tensor:
        own = [sights[int(place)] for place in places]
        found = []
        with torch.inference_mode():
            for number, shown in enumerate(_loaded(views, own), 1):
                parts = torch.split(torch.from_numpy(shown), max(1, recipe.batch))
                with half_precision(job.device):
                    logits = [network(as_input(part, job.device)).float() for part in parts]
                found.append(torch.cat(logits).softmax(1).mean(0))
                job.progress("test", number, len(own))
        return torch.stack(found)

    with torch.no_grad():
        p = by_share(of_share, torch.arange(len(sights)))
    return p.double().cpu().numpy()


def _loaded(views: Views, sights: Sequence[Sight]) -> Iterator[NDArray[np.uint8]]:
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        waiting: deque[Future[NDArray[np.uint8]]] = deque()
        for sight in sights:
            waiting.append(threads.submit(views.test, sight))
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def source_of(job: Job, sights: Sequence[Sight], views: Views) -> Source:
    """Return what training draws from: classes equally often, since the accuracy asked for is their mean.

    Raises LayoutError without reals or without forgeries.
    """
    targets = _classes(job, [one.entry for one in sights])
    if len(np.unique(targets > 0)) < 2:
        raise LayoutError("training needs reals and forgeries, and one of them is missing: look at the lists")

    def load(row: int, rng: np.random.Generator) -> Example:
        return views.training(sights[row], rng), np.array(targets[row])

    chances = item_weights(np.unique(targets, return_inverse=True)[1], 1.0)
    said = [(str(one.entry.path), one.box, int(target)) for one, target in zip(sights, targets, strict=True)]
    identity = sha256(repr((said, job.choices.described())).encode()).hexdigest()
    return Source(load, chances, identity)


def _trained(
    job: Job, sights: Sequence[Sight], make: Callable[[], nn.Module], views: Views, recipe: Recipe, name: str
) -> nn.Module:
    return train(
        make,
        source_of(job, sights, views),
        recipe,
        cross_entropy,
        seed=job.seed,
        device=job.device,
        checkpoint=job.folder / f"{name}.safetensors",
        progress=lambda *at: job.progress(f"training on {name}", *at),
    )


def _table(
    job: Job,
    train_on: Sequence[Sight],
    test_on: Sequence[Sight],
    make: Callable[[], nn.Module],
    views: Views,
    recipe: Recipe,
) -> Table:
    """Train on all reals and each group, and test on all reals and each group of the same sort."""
    groups = job.choices.train_on or KINDS
    tested = KINDS if set(groups) <= set(KINDS) else tuple(job.kinds)
    y = _classes(job, [one.entry for one in test_on])
    table: Table = {}
    for group in groups:
        network = _trained(job, _with_group(job, train_on, group), make, views, recipe, group)
        p = scores(network, test_on, views, recipe, job)
        table[group] = {}
        for other in tested:
            of_it = np.array(
                [not one.entry.label or in_group(one.entry.family, job.kinds, other) for one in test_on]
            )
            if y[of_it].any():
                found = _figures(p, y, of_it)
                table[group][other] = {name: found[name] for name in ("acc", "auc")}
    return table


def _with_group(job: Job, sights: Sequence[Sight], group: str) -> list[Sight]:
    return [one for one in sights if not one.entry.label or in_group(one.entry.family, job.kinds, group)]


def _classes(job: Job, entries: Sequence[Entry]) -> NDArray[np.int64]:
    return np.array([class_of(one.family, job.kinds, job.choices.classes) for one in entries], np.int64)


def _figures(p: NDArray[np.float64], y: NDArray[np.int64], chosen: NDArray[np.bool_]) -> Values:
    return values(images.figures(p[chosen], y[chosen]), int(chosen.sum()))

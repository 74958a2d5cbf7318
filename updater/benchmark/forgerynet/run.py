"""ForgeryNet's tasks as benchmarks: their data, and a seed's figures.

To add a task is a module with its `measure`, and a line in TASKS and in MEASURES.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ingest.durable import folder_aside
from updater.benchmark.forgerynet import classes, map_networks, spatial, temporal
from updater.benchmark.forgerynet.choices import TASKS, Choices, Job
from updater.benchmark.forgerynet.tree import ForgeryTree, read_tree
from updater.benchmark.report.harness import Benchmark, Seed
from updater.benchmark.report.outcome import Outcome
from updater.benchmark.synthetic.forgerynet import write_forgerynet
from updater.data.layouts.entries import Entry
from updater.progress import Progress
from updater.training.processes import is_first, wait
from updater.training.weights import read_weights

MEASURES: Mapping[str, Callable[[Job], Outcome]] = {
    "image": classes.measure,
    "spatial": spatial.measure,
    "video": classes.measure,
    "temporal": temporal.measure,
}
_TREE = "1"
"""counts what has changed in our own media"""


def own_tree(choices: Choices, home: Path, other: Sequence[Entry], progress: Progress) -> ForgeryTree:
    """Return our own media as `read_tree` lists them; they are made in a folder of home's once."""
    medium = TASKS[choices.task].medium
    root = home / f"forgerynet-{medium}s-{_TREE}"
    make_once(root, partial(write_forgerynet, medium=medium, progress=partial(progress, f"make {medium}s")))
    return read_tree(choices, root, other)


def make_once(root: Path, write: Callable[[Path], object]) -> None:
    """Have our own media written into a folder that is not there; of several processes the first does."""
    if is_first() and not root.is_dir():
        with folder_aside(root) as aside:
            write(aside)
    wait()


def beginning(choices: Choices, device: torch.device, weights: Path | None) -> Choices:
    """Return the choices with the digest of the weights, whose network is made once to see that they fit.

    Raises NetworkError, BackboneError and WeightsError.
    """
    if weights is None and not choices.pretrained:
        return choices
    if choices.task == "spatial":
        map_networks.maker(choices, device, weights)[1]()
    else:
        network = choices.model.partition(":")[2] if choices.task == "temporal" else choices.model
        classifier = classes.of_pictures if choices.task == "image" else classes.of_videos
        classifier(replace(choices, model=network), 2, device, weights).make()
    return replace(choices, checkpoint=read_weights(weights).digest if weights else None)


def benchmark(
    choices: Choices, data: ForgeryTree, *, cache: Path, device: torch.device, weights: Path | None
) -> Benchmark[Job]:
    """Return a task as it is run. cache: of files' facts; weights: to begin with."""

    def prepare(progress: Progress) -> Job:
        sets = data.train, data.held_back, data.test
        return Job(*sets, data.kinds, choices, 0, device, Path(), cache, weights, progress)

    def measure(job: Job, seed: Seed) -> Outcome:
        outcome = MEASURES[choices.task](job.of(seed))
        return outcome.model_copy(update={"notes": (*data.notes, *outcome.notes)})

    return Benchmark(
        "forgerynet",
        data.name,
        data.digest,
        choices.as_record(),
        (choices.task, choices.model, str(choices.classes), choices.protocol),
        prepare,
        measure,
        task=choices.task,
    )

"""Parts of a stream put together, with the features that no training changes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from updater.benchmark.continual.setup import Setup
from updater.benchmark.data.crops import stored_features
from updater.benchmark.data.tasks import Stream, Task
from updater.data.stored_rows import StoredRows
from updater.data.training_data import LabelledCrops
from updater.progress import Progress
from updater.training.frozen import frozen_branch, frozen_rows
from updater.training.pools import with_crop_features


def with_features(stream: Stream, setup: Setup, progress: Progress, frozen: Path | None = None) -> Stream:
    """Return the stream with every crop's forensic features, computed once, whatever is trained on it.

    Where a frozen model looks at whole pictures, with what it makes of each item's, kept in the folder
    `frozen`, in the place of the picture. Parts that have either keep it. Raises WeightsError.
    """
    device = setup.torch_device
    with_crops = _in_every_part(
        stream,
        lambda part, say: _with_features(part, device, say),
        lambda part: len(part.crops) if part.crop_features is None else 0,
        "forensic features",
        progress,
    )
    picture, weights = setup.architecture.picture, setup.picture_from
    if picture is None or weights is None:
        return with_crops
    branch = frozen_branch(picture, weights)

    def seen(part: LabelledCrops, say: Callable[[int, int], None]) -> LabelledCrops:
        if part.pictures is None:
            return part
        rows = frozen_rows(branch, part.pictures, device, frozen, say)
        return replace(part, picture_features=rows, pictures=None)

    return _in_every_part(
        with_crops,
        seen,
        lambda part: 0 if part.pictures is None else len(part),
        "pictures",
        progress,
    )


def _in_every_part(
    stream: Stream,
    change: Callable[[LabelledCrops, Callable[[int, int], None]], LabelledCrops],
    amount: Callable[[LabelledCrops], int],
    stage: str,
    progress: Progress,
) -> Stream:
    """Change each part of a stream; `amount` is what its progress, which `change` tells, counts."""
    parts = [part for task in stream.tasks for part in (task.train, task.calibration, task.test)]
    parts += [one.items for one in stream.outliers]
    total, done = sum(amount(part) for part in parts), 0
    changed: list[LabelledCrops] = []
    for part in parts:
        before = done

        def say(now: int, _: int, before: int = before) -> None:
            progress(stage, before + now, total)

        changed.append(change(part, say))
        done += amount(part)
    ready = iter(changed)
    tasks = tuple(Task(one.name, next(ready), next(ready), next(ready)) for one in stream.tasks)
    outliers = tuple(replace(one, items=next(ready)) for one in stream.outliers)
    return replace(stream, tasks=tasks, outliers=outliers)


def _with_features(
    part: LabelledCrops, device: torch.device, progress: Callable[[int, int], None]
) -> LabelledCrops:
    crops = part.crops
    if part.crop_features is None and isinstance(crops, StoredRows) and all(not s.held for s in crops.shards):
        return replace(part, crop_features=stored_features(crops, device, progress))
    return with_crop_features(part, device, progress)

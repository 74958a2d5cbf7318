"""Parts of a stream put together, with the forensic features that no training changes."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from updater.benchmark.data.features import stored_features
from updater.benchmark.data.tasks import Stream, Task
from updater.benchmark.setup import Progress
from updater.stored_rows import StoredRows, joined_rows
from updater.training.pools import with_crop_features
from updater.training_data import LabelledCrops


def joined(parts: Sequence[LabelledCrops]) -> LabelledCrops:
    """Return the items of all parts, in order; at least one part, and all with features or none."""
    starts, crops = [np.zeros(1, np.int64)], 0
    for part in parts:
        starts.append(crops + part.starts[1:])
        crops += len(part.crops)
    features = [part.crop_features for part in parts if part.crop_features is not None]
    return LabelledCrops(
        ids=tuple(one for part in parts for one in part.ids),
        families=tuple(one for part in parts for one in part.families),
        sources=tuple(one for part in parts for one in part.sources),
        groups=tuple(one for part in parts for one in part.groups),
        crops=joined_rows([part.crops for part in parts]),
        starts=np.concatenate(starts),
        crop_features=joined_rows(features) if len(features) == len(parts) else None,
    )


def with_features(stream: Stream, device: torch.device, progress: Progress) -> Stream:
    """Return the stream with every crop's forensic features: computed once, whatever is trained on it.

    Parts that have them keep them.
    """
    parts = [part for task in stream.tasks for part in (task.train, task.calibration, task.test)]
    parts += [one.items for one in stream.outliers]
    total, done = sum(len(part.crops) for part in parts if part.crop_features is None), 0
    featured: list[LabelledCrops] = []
    for part in parts:
        before = done
        featured.append(
            _with_features(
                part,
                device,
                lambda now, of, before=before: progress("forensic features", before + now, total),  # type: ignore[misc]
            )
        )
        done += len(part.crops) if part.crop_features is None else 0
    ready = iter(featured)
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

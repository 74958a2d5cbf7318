"""The forensic features of crops that lie in a cache, kept beside them: computed once, whatever is run."""

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor

from detector.features.forensics import ForensicFeatures
from detector.release.architecture import FEATURE_VERSION
from updater.benchmark.data.cache import made_once
from updater.data.shards import Shard, read_shard
from updater.data.stored_rows import StoredRows
from updater.training.crop_rows import by_rows
from updater.training.pools import forensics_on

_OF = "of"


def stored_features(
    crops: StoredRows, device: torch.device, progress: Callable[[int, int], None] = lambda done, total: None
) -> StoredRows:
    """Return the raw forensic features of each crop, float32 [T, F], from files beside the crops' own.

    What they lack is computed, each file by one of the processes that run at once. progress gets crops of
    all files, and how many there are. Raises CacheError.
    """
    forensics, total = ForensicFeatures(crops.shape[1]).to(device), sum(one.count for one in crops.shards)
    found: dict[int, Shard | None] = {}
    done = 0
    for wait in (False, True):  # what another process is at is come back to
        for number, shard in enumerate(crops.shards):
            if found.get(number) is not None:
                continue
            found[number] = _features(shard, forensics, device, wait=wait)
            done += shard.count if found[number] is not None else 0
            progress(done, total)
    return crops.onto([one for _, one in sorted(found.items()) if one is not None])


def _features(shard: Shard, forensics: ForensicFeatures, device: torch.device, *, wait: bool) -> Shard | None:
    path = shard.path.with_name(f"{shard.digest}.features-{FEATURE_VERSION}-{device.type}.safetensors")

    def read() -> Shard | None:
        there = read_shard(path, "features")
        if there is None or there[0].count != shard.count:
            return None
        own, about = there
        return own if about.get(_OF) == _said(own.digest, shard) else None

    def written() -> bytes:
        crops = StoredRows([shard])
        rows = by_rows(
            forensics_on(device, forensics, crops.shape[1]), crops, device, lambda done, total: None
        )
        features = rows.cpu().numpy() if isinstance(rows, Tensor) else rows[:]
        digest = hashlib.sha256(np.ascontiguousarray(features).data).hexdigest()
        return save({"features": features}, {_OF: _said(digest, shard)})

    return made_once(path, read, written, wait=wait)


def _said(digest: str, crops: Shard) -> str:
    return f"sha256 {digest} of the crops {crops.digest}"

"""What the server holds to take labelled files into the memory: decoding children, features, an index."""

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ingest.records import MediaPlan
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings
from memory.crops.crop_store import CropStore
from memory.import_files import Imported, LabelledFile, prepare, write
from memory.index.index import Index
from memory.index.renewal import Renewal
from memory.settings import MemorySettings
from memory.store import Store


class Importer:
    """Takes parts of labelled folders, one after the other, on all cores."""

    def __init__(
        self, store: Store, crops: CropStore, memory: MemorySettings, ingest: IngestSettings
    ) -> None:
        self._store, self._crops, self._memory, self._ingest = store, crops, memory, ingest
        self._cores = len(os.sched_getaffinity(0))
        self._opened = ExitStack()
        self._one_at_a_time = threading.Lock()
        self._sandbox: Sandbox | None = None
        self._index: Index | None = None
        self._renewal = Renewal(store)

    def close(self) -> None:
        """End the decoding children."""
        with self._one_at_a_time:
            self._opened.close()

    def take(
        self,
        files: Sequence[LabelledFile],
        source: str,
        plan: MediaPlan,
        *,
        actor: str,
        labels: Mapping[str, int],
    ) -> Imported:
        """Decode, measure, remember and label files; as `memory.import_files.write` says.

        Raises what `prepare` and `write` there raise, and SandboxUnavailableError.
        """
        with self._one_at_a_time:
            sandbox, index = self._open()
            prepared = prepare(
                files,
                source,
                self._store,
                sandbox,
                lambda items: self._measure(items, plan),
                plan,
                self._ingest.max_fetched_bytes,
            )
            near = self._memory.near_duplicate_distance
            return write(prepared, self._store, self._crops, index, near, actor=actor, labels=labels)

    def _open(self) -> tuple[Sandbox, Index]:
        # ONNX Runtime takes memory and time to load, and a server that imports nothing does without it.
        from memory.features import FEATURE_VERSION, WIDTH

        if self._sandbox is None:
            ingest = self._ingest.model_copy(update={"decode_processes": self._cores})
            self._sandbox = self._opened.enter_context(Sandbox(ingest))
        if self._index is None:
            self._index = Index.open(self._memory.index_path, self._store, FEATURE_VERSION, WIDTH)
        self._index = self._renewal.current(self._index)
        return self._sandbox, self._index

    def _measure(self, items: Sequence[NDArray[np.uint8]], plan: MediaPlan) -> NDArray[np.float32]:
        from memory.features import ItemFeatures

        features = ItemFeatures(plan.crops.crop_px)
        bounds = [len(items) * part // self._cores for part in range(self._cores + 1)]
        parts = [items[start:end] for start, end in pairwise(bounds) if end > start]
        # Whole parts go to threads, and each is computed in its own.
        with ThreadPoolExecutor(self._cores) as pool:
            return np.concatenate(list(pool.map(features, parts)))

"""Labelled folders into the memory, cut as the live release cuts its media."""

import os
from collections.abc import Callable
from pathlib import Path

from deploy.client.http import Client, ServerUnavailable
from deploy.settings import DeploySettings
from detector.artifact import MANIFEST, read_manifest
from ingest.records import CropPlan
from ingest.sandbox import Sandbox
from ingest.settings import IngestSettings
from memory.crop_store import CropStore
from memory.import_folder import Imported, import_folder
from memory.settings import MemorySettings
from memory.store import Store


def run_import(folder: Path, actor: str, progress: Callable[[int, int], None]) -> Imported:
    """Import a folder into the settings' memory, on all cores; progress is called with (done, of all).

    Raises what memory.import_folder raises, and deploy.client's ServerRefused.
    """
    memory, ingest = MemorySettings(), IngestSettings()
    cores = len(os.sched_getaffinity(0))
    store = Store(memory.database_url)
    try:
        with Sandbox(ingest.model_copy(update={"decode_processes": cores})) as sandbox:
            return import_folder(
                folder,
                store,
                CropStore(memory.crops_url),
                sandbox,
                _plan(actor),
                memory,
                actor=actor,
                max_file_bytes=ingest.max_fetched_bytes,
                progress=progress,
            )
    finally:
        store.close()


def _plan(actor: str) -> CropPlan:
    """The live release's, which every later release inherits; the default before the first one."""
    try:
        with Client(DeploySettings(), actor) as api:
            rollout = api.rollout()
            return read_manifest(api.file(rollout.stable, MANIFEST)).crop_plan if rollout else CropPlan()
    except ServerUnavailable:
        return CropPlan()  # release 0's data may be imported before anything runs

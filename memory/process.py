"""The memory's process: the parts of one memory worker, opened in order, and the worker's loop."""

import ctypes
import tempfile
from contextlib import ExitStack
from pathlib import Path

from prometheus_client import REGISTRY

from ingest.kafka.access import REQUEST_TIMEOUT_S, BrokerRefusedError, kafka_options, outage, require_entry
from ingest.kafka.sink import SinkError
from ingest.process.frame import Process, failing_on
from ingest.process.health import Disks, serve_health
from ingest.settings import IngestSettings
from ingest.tracing import exporting
from memory import metrics
from memory.crops.crop_store import CropStore
from memory.crops.object_store import local_folder, require_files
from memory.database import folder_of, require_openable
from memory.settings import MemorySettings
from memory.store import ExemplarMemoryError, Store, StoreUnavailableError
from memory.worker import run

_PROBE_TIMEOUT_S = 1.0
_M_MMAP_THRESHOLD, _LARGE_BYTES = -3, 2**20
"""glibc's name for it in malloc.h; a matrix of some hundred items is larger"""


def work(process: Process) -> None:
    """Run one memory worker until told to stop. Raises ProcessFailedError and WrongSettingError."""
    return_large_blocks()
    ingest, settings = IngestSettings(), MemorySettings()
    errors = (ExemplarMemoryError, SinkError, BrokerRefusedError, OSError)
    with failing_on(*errors), ExitStack() as parts:
        require_openable("FORGEWATCH_MEMORY_DATABASE_URL", settings.database_url)
        require_files("FORGEWATCH_MEMORY_CROPS_URL", settings.crops_url)
        store = Store(settings.database_url)
        parts.callback(store.close)
        metrics.MAX_CLUSTERED.set(settings.max_clustered)
        metrics.REHEARSAL_BUDGET.set(settings.rehearsal_budget)
        crops = CropStore(settings.crops_url)
        REGISTRY.register(metrics.Fill(store))
        REGISTRY.register(Disks(_folders(settings)))
        address = parts.enter_context(
            serve_health(
                process.metrics_host,
                settings.metrics_port,
                process.heartbeat,
                lambda: hindrance(ingest, store, crops),
            )
        )
        spans = parts.enter_context(exporting("memory", settings.group_id))
        require_entry(kafka_options(ingest), REQUEST_TIMEOUT_S)
        process.report_started(health=address, group=settings.group_id)
        run(ingest, settings, process.stop, process.heartbeat, spans)


def return_large_blocks() -> None:
    """Have large blocks go back to the system as soon as they are freed.

    glibc raises the bound from which on it does so with each block, up to 32 MiB. What it keeps then lies in
    pieces: 3,300 items and a list of clusters for each 320 of them left 525 MiB instead of 244.
    """
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def hindrance(ingest: IngestSettings, store: Store, crops: CropStore) -> str | None:
    """Give in one line why no unknown would be remembered now though the loop goes on; None: it would be."""
    try:
        store.revision()
    except StoreUnavailableError as error:
        return str(error)
    return crops.hindrance() or outage(kafka_options(ingest), _PROBE_TIMEOUT_S)


def _folders(settings: MemorySettings) -> dict[str, Path | None]:
    return {
        "crops": local_folder(settings.crops_url),
        "database": folder_of(settings.database_url),
        "index": settings.index_path.parent,
        "tmp": Path(tempfile.gettempdir()),
    }

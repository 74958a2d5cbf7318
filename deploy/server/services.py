"""What the API's functions work on, opened once a process and handed to each request."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from fastapi import Request
from sqlalchemy.exc import SQLAlchemyError

from deploy.releases.artifact_bucket import ArtifactBucket
from deploy.releases.artifact_folder import ArtifactFolder
from deploy.releases.ledger import Ledger
from deploy.releases.publish import Publisher
from deploy.server.importer import Importer
from deploy.settings import DeploySettings
from detector.records import RELEASES
from detector.settings import DetectorSettings
from ingest.kafka.options import kafka_options
from ingest.settings import IngestSettings
from memory.crops.crop_store import CropStore
from memory.crops.object_store import local_folder
from memory.database import open_engine
from memory.migrate import UnknownLayoutError
from memory.settings import MemorySettings
from memory.store import ExemplarMemoryError, Store
from updater.runs import RunTable
from updater.settings import UpdaterSettings


class ServicesError(Exception):
    """Something that the server needs cannot be opened; fatal at start."""


Artifacts = ArtifactFolder | ArtifactBucket


def open_artifacts(url: str, max_file_bytes: int) -> Artifacts:
    """The store of artifacts at a folder or a URL. Raises OSError where a folder cannot be made."""
    folder = local_folder(url)
    return ArtifactBucket(url, max_file_bytes) if folder is None else ArtifactFolder(folder, max_file_bytes)


@dataclass(frozen=True)
class Services:
    """The open parts of one deploy server."""

    ledger: Ledger
    artifacts: Artifacts
    publisher: Publisher
    memory: Store
    memory_settings: MemorySettings
    crops: CropStore
    runs: RunTable
    importer: Importer
    ingest: IngestSettings
    detector: DetectorSettings
    updater: UpdaterSettings


@contextmanager
def open_services(settings: DeploySettings) -> Iterator[Services]:
    """Open what this and the other packages' settings name. Publishing begins when `publisher` is entered.

    Raises ServicesError, LedgerError.
    """
    ingest, detector = IngestSettings(), DetectorSettings()
    memory, updater = MemorySettings(), UpdaterSettings()
    with ExitStack() as stack:
        ledger = Ledger(settings.database_url)
        stack.callback(ledger.close)
        try:
            store = Store(memory.database_url)
            stack.callback(store.close)
            crops = CropStore(memory.crops_url)
            engine = open_engine(updater.database_url)
            stack.callback(engine.dispose)
            runs = RunTable(engine, lease_s=updater.lease_s, max_takeovers=updater.max_takeovers)
            artifacts = open_artifacts(settings.artifacts_url, settings.max_file_bytes)
        except (ExemplarMemoryError, UnknownLayoutError, SQLAlchemyError, OSError, ImportError) as error:
            raise ServicesError(str(error).splitlines()[0]) from error
        importer = Importer(store, crops, memory, ingest)
        stack.callback(importer.close)
        publisher = Publisher(
            ledger,
            kafka_options(ingest),
            ingest.topic(RELEASES),
            interval_s=settings.recheck_interval_s,
            timeout_s=settings.kafka_timeout_s,
        )
        yield Services(
            ledger, artifacts, publisher, store, memory, crops, runs, importer, ingest, detector, updater
        )


def services(request: Request) -> Services:
    """The request's services (a FastAPI dependency)."""
    opened: Services = request.app.state.services
    return opened

"""The services of the updater's processes: two databases, the crops, and the way to deploy."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from memory.crops.crop_store import CropStore
from memory.settings import MemorySettings
from memory.store import Store
from updater.deploy_client import DeployClient
from updater.runs import RunTable, open_runs
from updater.settings import UpdaterSettings


@dataclass(frozen=True)
class UpdaterServices:
    """Opened once a process."""

    settings: UpdaterSettings
    memory: MemorySettings
    store: Store
    crops: CropStore
    table: RunTable
    deploy: DeployClient


@contextmanager
def open_services(settings: UpdaterSettings, memory: MemorySettings) -> Iterator[UpdaterServices]:
    """Open the databases, the crops and the way to deploy.

    Raises ExemplarMemoryError, SQLAlchemyError, OSError or ImportError where a database does not open.
    """
    with ExitStack() as opened:
        store = opened.enter_context(closing(Store(memory.database_url)))
        table = opened.enter_context(closing(open_runs(settings)))
        deploy = opened.enter_context(DeployClient(settings))
        yield UpdaterServices(settings, memory, store, CropStore(memory.crops_url), table, deploy)

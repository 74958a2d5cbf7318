"""What the API's functions are given: what was opened once a process. Who asks is deploy.access's."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import pairwise
from typing import Annotated

import numpy as np
from fastapi import Depends, Request
from numpy.typing import NDArray
from sqlalchemy.exc import SQLAlchemyError

from deploy.access.guard import Access, AccessError, open_access
from deploy.group_lag import group_lag
from deploy.notice_records import key_of
from deploy.notices.notices import Notices
from deploy.notices.sender import Sender
from deploy.notices.telling import pending_notice
from deploy.record.heads import HEADS, INTERVAL_S, HeadPublisher
from deploy.record.record import MemoryActs, Record
from deploy.releases.artifacts import ArtifactStore, find_evidence
from deploy.releases.evidence import Evaluations, Evidence
from deploy.releases.ledger import Ledger
from deploy.releases.publish import RECHECK_INTERVAL_S, Publisher
from deploy.releases.standing import replay
from deploy.rollouts.controller import RolloutController
from deploy.rollouts.reader import known_sources
from deploy.rollouts.retractions import Retractions
from deploy.server.pictures import SharedMedia
from deploy.server.trying import TrialScorer
from deploy.settings import DeploySettings
from detector.reading import group_of
from detector.records import RELEASES, VERDICTS
from detector.release.artifact import EVALUATION
from detector.settings import DetectorSettings
from ingest.kafka.access import kafka_options
from ingest.records import MediaPlan
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings
from memory.crops.crop_store import CropStore
from memory.database import UnknownLayoutError, open_engine
from memory.import_files import LabelledFile, prepare, write
from memory.index.index import Index
from memory.index.shared_index import Renewal, SharedIndex
from memory.records import ImportDone
from memory.settings import MemorySettings
from memory.store import ExemplarMemoryError, Store
from updater.runs import RunTable
from updater.settings import UpdaterSettings


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
    ) -> ImportDone:
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
            return write(prepared, self._store, self._crops, index, actor=actor, labels=labels)

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


class ServicesError(Exception):
    """Something that the server needs cannot be opened; fatal at start."""


@dataclass(frozen=True)
class Services:
    """What one deploy server has open."""

    access: Access
    ledger: Ledger
    record: Record
    memory_acts: MemoryActs
    heads: HeadPublisher
    artifacts: ArtifactStore
    publisher: Publisher
    controller: RolloutController
    retractions: Retractions
    notices: Notices
    memory: Store
    memory_settings: MemorySettings
    crops: CropStore
    runs: RunTable
    importer: Importer
    trier: TrialScorer
    shared_media: SharedMedia
    ingest: IngestSettings
    detector: DetectorSettings
    updater: UpdaterSettings

    @cached_property
    def evaluations(self) -> Evaluations:
        """The releases' evaluations, from the store of artifacts."""
        return Evaluations(lambda digest: b"".join(self.artifacts.read(digest, EVALUATION).pieces))

    def evidence(self, digest: str) -> Evidence:
        """What a release may go live by, as it lies there now; raises what `find_evidence` does."""
        return find_evidence(self.memory, self.artifacts, digest)

    @cached_property
    def shared_index(self) -> SharedIndex:
        """The memory's index, read when a cluster is first looked at."""
        return SharedIndex(self.memory, self.memory_settings.index_path)


@contextmanager
def open_services(settings: DeploySettings) -> Iterator[Services]:
    """Open what this and the other packages' settings name.

    Publishing, rollouts and notices begin when `publisher`, `heads`, `controller`, `retractions` and
    `notices` are entered.
    Raises ServicesError, LedgerError, RecordError.
    """
    ingest, detector = IngestSettings(), DetectorSettings()
    memory, updater = MemorySettings(), UpdaterSettings()
    with ExitStack() as stack:
        ledger = Ledger(settings.database_url)
        stack.callback(ledger.close)
        record = Record(settings.database_url)
        stack.callback(record.close)
        try:
            access = stack.enter_context(open_access(settings))
            store = Store(memory.database_url)
            stack.callback(store.close)
            crops = CropStore(memory.crops_url)
            engine = open_engine(updater.database_url)
            stack.callback(engine.dispose)
            runs = RunTable(engine, lease_s=updater.lease_s)
            limit, signers = settings.max_file_bytes, detector.trusted_signers
            artifacts = ArtifactStore(settings.artifacts_url, limit, signers)
        except (
            AccessError,
            ExemplarMemoryError,
            UnknownLayoutError,
            SQLAlchemyError,
            OSError,
            ImportError,
        ) as error:
            raise ServicesError(str(error).splitlines()[0]) from error
        importer = Importer(store, crops, memory, ingest)
        stack.callback(importer.close)
        trier = TrialScorer(artifacts, ingest, detector)
        stack.callback(trier.close)
        shared_media = SharedMedia(ingest)
        stack.callback(shared_media.close)
        times = {"interval_s": RECHECK_INTERVAL_S, "timeout_s": settings.kafka_timeout_s}
        publisher = Publisher(ledger, kafka_options(ingest), ingest.topic(RELEASES), **times)
        tokens = settings.detector_token, settings.token
        keys = [token.get_secret_value().encode() for token in tokens if token]
        stored, known = partial(find_evidence, store, artifacts), partial(known_sources, store)
        controller = RolloutController(ledger, publisher, stored, ingest, keys, known, access.tokens_given)
        retractions = Retractions(
            ledger,
            publisher,
            lambda prefix: group_lag(
                kafka_options(ingest),
                group_of(detector.group_id, prefix),
                ingest.topic(VERDICTS),
                settings.kafka_timeout_s,
            ),
            ingest,
            keys,
        )
        secret = settings.webhook_secret
        key = None if secret is None else key_of(secret.get_secret_value())
        notices = Notices(
            record,
            [
                Sender(record, number, webhook, key, page_url=settings.url)
                for number, webhook in enumerate(settings.webhooks, 1)
            ],
            lambda: pending_notice(ledger.id, replay(ledger.events()), controller.view(), datetime.now(UTC)),
            settings.webhook_ca,
        )
        memory_acts = MemoryActs(store, record)
        heads = HeadPublisher(
            record,
            memory_acts.bring_in,
            kafka_options(ingest),
            ingest.topic(HEADS),
            interval_s=INTERVAL_S,
            timeout_s=settings.kafka_timeout_s,
        )
        yield Services(
            access,
            ledger,
            record,
            memory_acts,
            heads,
            artifacts,
            publisher,
            controller,
            retractions,
            notices,
            store,
            memory,
            crops,
            runs,
            importer,
            trier,
            shared_media,
            ingest,
            detector,
            updater,
        )


def of_request(request: Request) -> Services:
    """The request's services (a FastAPI dependency)."""
    services: Services = request.app.state.services
    return services


Opened = Annotated[Services, Depends(of_request)]

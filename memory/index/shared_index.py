"""The index as the threads of a server share it, and how an outgrown one is made anew: both aside."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread

import faiss
import structlog

from detector.release.manifest import FEATURE_VERSION, FEATURE_WIDTH
from memory.index.index import Index
from memory.store import ExemplarMemoryError, Store

_PATIENCE_S = 0.1
"""What one view waits for; few new rows are taken in within milliseconds."""

log = structlog.get_logger()


class IndexBusyError(ExemplarMemoryError):
    """Retryable: the index is being read, or many new rows are taken in."""


class SharedIndex:
    """One index of FEATURE_VERSION, opened when it is first wanted, for one thread at a time."""

    def __init__(self, store: Store, path: Path) -> None:
        """Begin from the memory's snapshot at path, where there is one; nothing is written there."""
        self._store, self._path = store, path
        self._renewal = Renewal(store)
        self._index: Index | None = None
        self._lock = Lock()
        self._thread: Thread | None = None

    @contextmanager
    def current(self) -> Iterator[Index]:
        """Yield the index, brought up to the rows of now. Raises IndexBusyError, without waiting for long."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            # A view that gives up lets it go on; it loses nothing, so the process does not wait for its end.
            thread = self._thread = Thread(target=self._bring_up, name="shared index", daemon=True)
            thread.start()
        thread.join(_PATIENCE_S)
        if thread.is_alive() or not self._lock.acquire(timeout=_PATIENCE_S):
            raise IndexBusyError("the index of the exemplars is being read; try again in some seconds")
        try:
            if self._index is None:
                raise IndexBusyError("the index of the exemplars cannot be read; the server's log says why")
            yield self._index
        finally:
            self._lock.release()

    def _bring_up(self) -> None:
        with self._lock:
            try:
                if self._index is None:
                    self._index = Index.open(self._path, self._store, FEATURE_VERSION, FEATURE_WIDTH)
                self._index = self._renewal.current(self._index)
                with self._store.read() as connection:
                    self._index.catch_up(connection)
            except Exception as error:  # nobody watches a thread: whatever it is, the next view tries again
                log.warning("index not read, done again", error=f"{type(error).__name__}: {error}")


class Renewal:
    """Makes one index at a time, in a thread; whatever becomes of that, the rows are the truth."""

    def __init__(self, store: Store, path: Path | None = None) -> None:
        """Read the rows of this store; path: where the snapshot of the new index is put."""
        self._store, self._path = store, path
        self._thread: Thread | None = None
        self._made: Index | None = None

    @property
    def under_way(self) -> bool:
        """Whether an index is being made, or waits to be taken: then no other may save a snapshot."""
        return self._thread is not None

    def current(self, index: Index) -> Index:
        """Return the index to go on with: a new one once it is made, which is yet to catch up, else this one.

        Never waits. Begins to make another where this one is outgrown.
        """
        if self._thread is None:
            if index.outgrown:
                arguments = index.feature_version, index.width
                # A computation cannot be stopped and loses nothing, so the process does not wait for its end.
                self._thread = Thread(target=self._make, args=arguments, name="index", daemon=True)
                self._thread.start()
            return index
        if self._thread.is_alive():
            return index
        made, self._thread, self._made = self._made, None, None
        return index if made is None else made

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _make(self, feature_version: str, width: int) -> None:
        # Of this thread alone: the worker beside it needs a core too.
        faiss.omp_set_num_threads(1)
        try:
            made = Index.build(self._store, feature_version, width)
            if self._path is not None:
                made.save(self._path)
        except Exception as error:  # nobody watches a thread: whatever it is, the next round tries again
            log.warning("index not made anew, done again", error=f"{type(error).__name__}: {error}")
        else:
            self._made = made

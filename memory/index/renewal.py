"""An index that was outgrown is made anew aside, while the one at hand goes on answering."""

from pathlib import Path
from threading import Thread

import faiss
import structlog

from memory.index.index import Index
from memory.store import Store

log = structlog.get_logger()


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

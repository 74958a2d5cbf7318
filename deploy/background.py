"""Work that goes on in a thread of its own beside the server."""

import threading
from abc import ABC, abstractmethod
from typing import Self


class BackgroundWork(ABC):
    """Works in a thread while it is entered. problem: why it cannot go on now; None: it does."""

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.problem: str | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Work until `_stop` is set."""

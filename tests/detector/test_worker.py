import threading
from types import SimpleNamespace
from typing import Any

import pytest

from detector.settings import DetectorSettings
from detector.worker import Worker
from ingest.records import InRecord
from ingest.settings import IngestSettings

POLLS = 12


class Stream:
    """An endless topic of null values; a batch takes `item_s` a record, by the clock below, to be judged."""

    def __init__(self, item_s: float, stop: threading.Event) -> None:
        self.item_s, self.stop, self.now = item_s, stop, 0.0
        self.asked: list[int] = []
        self._taken = 0

    def poll(self, most: int, timeout_s: float) -> list[InRecord]:
        self.now += self._taken * self.item_s  # the batch before is judged once this one is taken
        self.asked.append(most)
        self._taken = most
        if len(self.asked) == POLLS:
            self.stop.set()
        return [InRecord("media", 0, offset, 0, None, None, ()) for offset in range(most)]

    def group_metadata(self) -> None:
        return None

    def offsets_after(self, records: list[InRecord]) -> dict[tuple[str, int], int]:
        return {}


def asked_for(item_s: float, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[int]:
    stop = threading.Event()
    source: Any = Stream(item_s, stop)
    monkeypatch.setattr("detector.worker.time", SimpleNamespace(monotonic=lambda: source.now))
    serving: Any = SimpleNamespace(live=True, artifact=None, tick=lambda: None)
    sink: Any = SimpleNamespace(commit=lambda *_: None)
    none: Any = None
    Worker(source, none, none, serving, sink, IngestSettings(), DetectorSettings(**settings), stop).run()
    return source.asked


def test_a_batch_of_slow_media_is_no_larger_than_its_duration_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asked_for(0.25, monkeypatch, max_batch_duration_s=2)
    assert asked[0] == 1
    assert set(asked[3:]) == {8}


def test_media_slower_than_a_batch_is_taken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(asked_for(7, monkeypatch, max_batch_duration_s=2)) == {1}


def test_a_batch_of_quick_media_is_as_large_as_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(asked_for(0.001, monkeypatch, max_batch_items=48)[3:]) == {48}

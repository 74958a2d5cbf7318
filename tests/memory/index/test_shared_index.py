"""The index of a server's threads: what it holds, and that no view waits for it."""

from threading import Event

import pytest

from memory.index import shared_index
from memory.index.index import Index
from memory.index.shared_index import IndexBusyError, SharedIndex
from memory.rows import drop


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(shared_index, "_PATIENCE_S", 60)  # a busy machine


def ids(shared):
    with shared.current() as index:
        return sorted(index.ids)


def test_it_holds_what_the_rows_hold_now(store, settings, fill, make):
    shared = SharedIndex(store, settings.index_path)
    fill([make(0), make(1)])
    assert ids(shared) == ["media-0-0", "media-0-1"]
    fill([make(2)])
    with store.write() as connection:
        drop(connection, ["media-0-0"])
    assert ids(shared) == ["media-0-1", "media-0-2"]
    assert not settings.index_path.exists()


def test_a_view_does_not_wait_until_it_is_read(store, settings, fill, make, monkeypatch):
    fill([make(0)])
    may_open, opened = Event(), Index.open

    def slowly(*arguments):
        may_open.wait()
        return opened(*arguments)

    monkeypatch.setattr(shared_index.Index, "open", slowly)
    monkeypatch.setattr(shared_index, "_PATIENCE_S", 0.01)
    shared = SharedIndex(store, settings.index_path)
    with pytest.raises(IndexBusyError, match="try again"):
        ids(shared)
    may_open.set()
    monkeypatch.setattr(shared_index, "_PATIENCE_S", 60)
    assert ids(shared) == ["media-0-0"]


def test_one_that_cannot_be_read_is_tried_again(store, settings, fill, make, monkeypatch):
    fill([make(0)])
    shared = SharedIndex(store, settings.index_path)

    def fail(*_arguments):
        raise OSError("no disk")

    with monkeypatch.context() as patched:
        patched.setattr(shared_index.Index, "open", fail)
        with pytest.raises(IndexBusyError, match="the server's log says why"):
            ids(shared)
    assert ids(shared) == ["media-0-0"]

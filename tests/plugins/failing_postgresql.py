"""PostgreSQL is killed, only reads, or is silent: for as long as a test lets it."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from bars import Bar
from black_hole import Proxy
from sqlalchemy import create_engine, text

from memory import postgresql as bounds
from tests.conftest import PostgreSQL

Begin = Callable[[], AbstractContextManager[None]]
"""Causes a fault: entered, it is there, and left, it is over."""


@pytest.fixture
def restarted(postgresql: PostgreSQL) -> Begin:
    """PostgreSQL is killed and starts again."""

    @contextlib.contextmanager
    def fault() -> Iterator[None]:
        postgresql.restart()
        yield

    return fault


@pytest.fixture
def read_only(postgresql_server: str) -> Begin:
    """PostgreSQL reads alone, as a standby does to which was failed over."""
    engine = create_engine(f"{postgresql_server}/postgres", isolation_level="AUTOCOMMIT")

    def change(command: str) -> None:
        with engine.connect() as connection:
            connection.execute(text(f"ALTER SYSTEM {command}"))
            connection.execute(text("SELECT pg_reload_conf()"))
        engine.dispose()

    @contextlib.contextmanager
    def fault() -> Iterator[None]:
        change("SET default_transaction_read_only = on")
        try:
            yield
        finally:
            change("RESET default_transaction_read_only")

    return fault


@pytest.fixture
def swallowed(proxy: Proxy, bar: Bar, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """The network takes every byte and forwards none. In the short form the bounds are short too."""
    if not bar.long:
        for name, value in {"SILENT_S": 2.0, "IDLE_S": 1.0, "LOCK_WAIT_S": 10.0, "CONNECT_S": 2}.items():
            monkeypatch.setattr(bounds, name, value)

    @contextlib.contextmanager
    def fault() -> Iterator[None]:
        proxy.swallows.set()
        yield
        proxy.swallows.clear()

    return fault

"""A server where people have tokens, and a clock that a test sets."""

from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from fastapi.testclient import TestClient

from deploy.access.roles import Person, Role, TokenRequest
from deploy.access.tokens import Tokens
from deploy.app import create_app
from deploy.releases.ledger import Ledger
from deploy.settings import DeploySettings
from memory.database import open_engine

ROOT = Person("root", frozenset({"admin"}), "token")


class Clock:
    """A time that stands still until it is moved."""

    def __init__(self):
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self):
        return self.now

    def go(self, **by):
        self.now += timedelta(**by)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def engine(tmp_path):
    """A database with deploy's tables."""
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    Ledger(url).close()
    opened = open_engine(url)
    yield opened
    opened.dispose()


@pytest.fixture
def tokens(engine, clock):
    return Tokens(engine, DeploySettings(), clock)


@pytest.fixture
def give():

    def give_token(tokens, name, role, days=90):
        return tokens.add(TokenRequest(name=name, role=role, days=days), ROOT).token

    return give_token


@pytest.fixture
def bearers(services, give):
    """By role, the header of somebody who has it."""
    tokens = services.access.tokens
    return {
        role: {"Authorization": f"Bearer {give(tokens, f'{role}-1', role)}"}
        for kind in get_args(Role)
        for role in (get_args(kind) or (kind,))
    }


@pytest.fixture
def stranger(settings, services):
    """Whom nothing names, on the server of `bearers`."""
    with TestClient(
        create_app(settings, services),
        base_url="https://127.0.0.1:8700",
        raise_server_exceptions=False,
        follow_redirects=False,
    ) as client:
        yield client

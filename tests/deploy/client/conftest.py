"""A client of a deploy server that answers."""

from collections.abc import Iterator

import pytest

from deploy.client.http import Client
from deploy.settings import DeploySettings


@pytest.fixture
def api(served: str) -> Iterator[Client]:
    with Client(DeploySettings(url=served), "ada") as client:
        yield client

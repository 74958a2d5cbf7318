"""Logs are configured for a process once; tests that follow one another share it."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command or a process that a test starts here configures the logs of all the tests that follow it."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)

"""A sandbox of one child, and that child."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psutil
import pytest

from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings

OneChild = Callable[[], AbstractContextManager[tuple[Sandbox, psutil.Process]]]


@pytest.fixture
def one_child() -> OneChild:
    """Opens a sandbox of one child; gives both."""

    @contextmanager
    def opened() -> Iterator[tuple[Sandbox, psutil.Process]]:
        before = set(psutil.Process().children())  # of other modules' fixtures
        with Sandbox(IngestSettings()) as sandbox:
            (forks,) = set(psutil.Process().children()) - before
            (child,) = forks.children()
            yield sandbox, child

    return opened

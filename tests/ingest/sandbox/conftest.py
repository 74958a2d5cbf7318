"""A sandbox of one child, and that child."""

from contextlib import contextmanager

import psutil
import pytest

from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings


@pytest.fixture
def one_child():

    @contextmanager
    def opened():
        before = set(psutil.Process().children())  # of other modules' fixtures
        with Sandbox(IngestSettings()) as sandbox:
            (forks,) = set(psutil.Process().children()) - before
            (child,) = forks.children()
            yield sandbox, child

    return opened

"""The file of tests that takes minutes begins first, or one process is at it when the other has ended."""

import pytest

LONGEST = "tests/updater/test_run.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))

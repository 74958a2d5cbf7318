"""How tests share a machine: two processes run them side by side, a file at a time."""

import pytest
from hypothesis import settings

# How long an example takes is the machine's affair: no test is timed.
settings.register_profile("forgewatch", deadline=None)
settings.load_profile("forgewatch")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each file to one process, which makes its fixtures once, and files that share a stack too."""
    for item in items:
        folder = item.path.parent
        shared = folder if folder.name == "loop" else item.path
        item.add_marker(pytest.mark.xdist_group(str(shared.relative_to(item.config.rootpath))))

"""A small tree of DeeperForensics' layout, made as the benchmark makes its own."""

import pytest

from updater.benchmark.deeperforensics.tree import write_deeperforensics


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deeperforensics")
    write_deeperforensics(folder, counts={"train": 2, "val": 1, "test": 2}, hidden=4, processes=1)
    return folder

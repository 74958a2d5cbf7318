import sys
from functools import partial

import pytest
from exemplars import make_arrival

from detector.release.manifest import FEATURE_VERSION
from memory.crops.crop_store import CropStore
from memory.index.index import Index
from memory.intake import remember
from memory.settings import MemorySettings
from memory.store import Store

WIDTH = 24


def pytest_generate_tests(metafunc):
    if "database_url" in metafunc.fixturenames and hasattr(metafunc.module, "DATABASES"):
        metafunc.parametrize("database_url", metafunc.module.DATABASES, indirect=True)


@pytest.fixture
def database_url(request):
    """Where the store lies: SQLite, unless a module names DATABASES."""
    return str(request.getfixturevalue(getattr(request, "param", "sqlite_url")))


@pytest.fixture
def settings(tmp_path, database_url):
    return MemorySettings(
        database_url=database_url, crops_url=str(tmp_path / "crops"), index_path=tmp_path / "index"
    )


@pytest.fixture
def store(settings):
    opened = Store(settings.database_url)
    yield opened
    opened.close()


@pytest.fixture
def crops(settings):
    return CropStore(settings.crops_url)


@pytest.fixture
def index():
    return Index(FEATURE_VERSION, WIDTH)


@pytest.fixture
def fill(store, crops, index):
    def put(arrivals, near=0.1, most_alike=sys.maxsize):
        digests = [crops.put(a.crops) for a in arrivals]
        with store.write() as connection:
            return remember(connection, crops, index, arrivals, digests, near, most_alike)

    return put


@pytest.fixture
def make():
    return partial(make_arrival, width=WIDTH)

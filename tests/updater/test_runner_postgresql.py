"""An update whose memory, runs and ledger all lie in one PostgreSQL database."""

import httpx
import pytest

from memory.settings import MemorySettings
from updater.worker import run_once


@pytest.fixture
def memory_settings(memory_settings, postgresql_url):
    return MemorySettings.model_validate({**memory_settings.model_dump(), "database_url": postgresql_url})


def test_an_update_trains_from_postgresql_and_is_proposed_there(
    scant_recipes, make_settings, remember, memory_settings, deploy_server, postgresql_url
):
    remember("real", 40)
    remember("blocky", 40)
    with deploy_server(postgresql_url) as (url, parts):
        run = run_once(make_settings(url, backbone="none", database_url=postgresql_url), memory_settings)
        assert (run.state, run.error) == ("proposed", None)
        (release,) = httpx.get(f"{url}/releases").json()
        assert release["candidate"]["digest"] == run.candidate
        assert parts.artifacts.folder(run.candidate).is_dir()

"""A disk that is full and a loss that is no number: the update ends with one line, and proposes nothing."""

import math
from pathlib import Path

import httpx
import pytest

from tests.updater.on_a_small_disk import NOT_TO_BE_HAD
from updater.training import two_stages
from updater.worker import run_once

pytestmark = pytest.mark.slow


def proposals(url):
    return [one["digest"] for one in httpx.get(f"{url}/releases").json()]


@pytest.fixture
def media(remember):
    remember("real", 40)
    remember("blocky", 40)


@pytest.fixture
def spoil(monkeypatch):
    """Has the loss be this number from a step on."""
    classification = two_stages.classification

    def spoil(value, after):
        steps = iter(range(10**6))

        def spoilt(step, data):
            loss = classification(step, data)
            return lambda batch: loss(batch) * (value if next(steps) >= after else 1.0)

        monkeypatch.setattr(two_stages, "classification", spoilt)

    return spoil


@pytest.mark.bar("A2")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_the_update_with_one_line_and_proposes_nothing(
    scant_recipes, make_settings, media, memory_settings, deploy_server, spoil, value, bar
):
    spoil(value, after=1)
    with deploy_server() as (url, artifacts):
        run = run_once(make_settings(url), memory_settings)
        bar.count(1)
        assert proposals(url) == []
        assert not list(artifacts.glob("*/manifest.json"))
    print(run)
    assert run.state == "failed"
    assert "\n" not in run.error


@pytest.mark.bar("A2")
def test_a_full_disk_ends_the_update_with_one_line_and_proposes_nothing(
    environment, table_of, media, deploy_server, fork, tmp_path, bar
):
    script = Path(__file__).with_name("on_a_small_disk.py")
    with deploy_server() as (url, artifacts):
        sizes = [64, 256, 1024, 4096, 8192, 16384][:: 1 if bar.long else 3]
        for kib in sizes:
            settings = environment(url, f"of-{kib}", DATABASE_URL=f"sqlite:///{tmp_path}/of-{kib}.sqlite")
            table = table_of(settings)
            run, _ = table.request("manual/1", "manual", "ann")
            code = fork(script, settings | {"DISK_KIB": str(kib)}).wait(400)
            if code == NOT_TO_BE_HAD:
                pytest.skip("no mount namespace may be made here")
            ended = table.get(run.id)
            print(kib, code, ended.state, ended.stage, ended.error)

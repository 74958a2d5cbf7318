"""A disk that is full and a loss that is no number: the update ends with one line, and proposes nothing.

A full disk has no control: there is no defence to be switched off, since the system refuses the write itself.
"""

import math
import threading
from pathlib import Path

import httpx
import pytest
import torch
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from tests.updater.on_a_small_disk import NOT_TO_BE_HAD
from updater.runner import work
from updater.services import open_services
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
    assert run.state == "failed"
    assert run.error == "DivergedError: the training diverged: by step 2 a weight is no number"


@pytest.mark.bar("A2")
def test_control_where_nobody_looks_at_the_weights_the_update_trains_on_with_them(
    scant_recipes, make_settings, media, memory_settings, deploy_server, spoil, monkeypatch, bar
):
    spoil(math.nan, after=1)
    monkeypatch.setattr(torch, "isfinite", lambda values: torch.ones_like(values, dtype=torch.bool))
    with deploy_server() as (url, _):
        run = run_once(make_settings(url), memory_settings)
    bar.count(1)
    assert run.state == "failed"  # what fits the reference refuses the numbers, after all of the training
    assert "diverged" not in (run.error or "")


@pytest.mark.bar("A2")
def test_a_full_disk_ends_the_update_with_one_line_and_proposes_nothing(
    environment, table_of, media, deploy_server, fork, tmp_path, bar
):
    script = Path(__file__).with_name("on_a_small_disk.py")
    with deploy_server() as (url, artifacts):
        ended = []
        for kib in (1024, 64, 256, 4096, 8192)[: bar.times(1, 5)]:
            settings = environment(url, f"of-{kib}", DATABASE_URL=f"sqlite:///{tmp_path}/of-{kib}.sqlite")
            table = table_of(settings)
            run, _ = table.request("manual/1", "manual", "ann")
            if fork(script, settings | {"DISK_KIB": str(kib)}).wait(400) == NOT_TO_BE_HAD:
                pytest.skip("no mount namespace may be made here")
            ended.append(table.get(run.id))
        bar.count(len(ended))
        print(*((run.state, run.stage, run.error) for run in ended), sep="\n")
        assert proposals(url) == []
        assert not list(artifacts.glob("*/manifest.json"))
    assert {run.state for run in ended} == {"failed"}
    assert all("No space left on device" in run.error and "\n" not in run.error for run in ended)


@pytest.mark.bar("A2")
def test_an_update_whose_table_does_not_answer_waits_and_is_proposed_later(
    scant_recipes, make_settings, media, memory_settings, deploy_server, bar
):
    with (
        deploy_server() as (url, _),
        open_services(make_settings(url, backbone="none"), memory_settings) as services,
    ):
        table, down = services.table, threading.Event()

        def refuse(*statement):
            if down.is_set() and threading.current_thread() is threading.main_thread():
                down.clear()
                raise OperationalError("UPDATE", {}, Exception("the server closed\nthe connection"))

        event.listen(table._engine, "before_cursor_execute", refuse)
        table.request("manual/1", "manual", "ann")

        def work_on(show):
            return work(services, table.claim("one"), threading.Event(), show)

        waits = work_on(lambda stage, done, total: down.set() if stage == "propose" else None)
        assert (waits.state, proposals(url)) == ("queued", [])
        assert waits.error == "waits: the updater's database failed: the server closed the connection"
        ended = work_on(lambda *at: None)
        bar.count(1, lost=int(not ended.state.startswith("proposed")), twice=len(proposals(url)) - 1)
        assert proposals(url) == [ended.candidate]

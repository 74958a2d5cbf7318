"""A runner that dies, is replaced or is told to end loses nothing and proposes nothing twice."""

import shutil
import signal
import socket
import sys
import threading
import urllib.request
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
import psutil
import pytest
from safetensors.torch import load_file
from update_processes import awaited

import updater
from ingest.durable import ASIDE
from memory.database import open_engine
from updater import torchrun
from updater.candidate import plan
from updater.runner import work
from updater.runs import LeaseLostError, RunTable, utc_now
from updater.services import open_services
from updater.worker import run_once


class Killed(BaseException):
    """Stands for the kernel ending a runner: nothing in the runner may catch it."""


def die_at(stage, done):
    def show(at, so_far, total):
        if at == stage and so_far >= done:
            raise Killed

    return show


@pytest.mark.bar("A2")
def test_the_successor_of_a_killed_runner_goes_on_and_makes_the_very_same_artifact(
    few_measured, make_settings, remember, memory_settings, deploy_server, monkeypatch
):
    monkeypatch.setattr(plan, "FIRST", replace(plan.FIRST, backbone_steps=8, balanced_steps=20, batch=16))
    monkeypatch.setattr("updater.training.fit.SAVE_EVERY", 5)
    remember("real", 40)
    remember("blocky", 40)
    with deploy_server() as (url, _):
        unbroken = run_once(make_settings(url, "unbroken"), memory_settings)
        settings = make_settings(url, "killed", lease_s=0.2)
        with open_services(settings, memory_settings) as services:
            table = services.table
            run, _ = table.request("manual/1", "manual", "ann")

            def successor(show):
                lease = None
                while lease is None:  # until the dead runner's lease has run out
                    lease = table.claim("successor")
                return work(services, lease, threading.Event(), show)

            def seen_by(until):
                stages = []
                show = die_at(*until) if until else lambda *at: None

                def both(*at):
                    stages.append(at)
                    show(*at)

                if until:
                    with pytest.raises(Killed):
                        successor(both)
                else:
                    successor(both)
                return stages

            seen_by(("backbone", 7))
            resumed = seen_by(("evaluate candidate", 1))
            # Steps 1 to 5 were saved: the next one reported is the 6th.
            assert next(done for stage, done, _ in resumed if stage == "backbone") == 6

            # The control: with nothing kept, a successor begins at step 1.
            kept = settings.work_dir / f"run-{run.id}"
            aside = settings.work_dir / "aside"
            shutil.copytree(kept, aside)
            shutil.rmtree(kept)
            with table._engine.begin() as connection:  # three deaths would end the run
                connection.exec_driver_sql("update updater_runs set takeovers = 0")
            assert next(done for stage, done, _ in seen_by(("backbone", 2)) if stage == "backbone") == 1
            shutil.rmtree(kept)
            aside.rename(kept)

            # A file that a runner was writing when it was killed: no artifact may hold it.
            (kept / "artifact" / f".evaluation.json.x{ASIDE}").write_text("{")
            assert not {"backbone", "balanced", "reference"} & {stage for stage, _, _ in seen_by(None)}
            ended = table.get(run.id)
        assert ended.state.startswith("proposed")
        assert ended.candidate == unbroken.candidate


def test_a_runner_without_its_lease_proposes_nothing(
    scant_recipes, make_settings, remember, memory_settings, deploy_server
):
    remember("real", 40)
    remember("blocky", 40)
    with deploy_server() as (url, _):
        settings = make_settings(url, backbone="none")
        with open_services(settings, memory_settings) as services:
            run, _ = services.table.request("manual/1", "manual", "ann")
            zombie = services.table.claim("zombie")

            def taken_over_late(stage, done, total):
                if stage == "propose":
                    engine = open_engine(settings.database_url)
                    tomorrow = utc_now() + timedelta(days=1)
                    other = RunTable(engine, lease_s=60, max_takeovers=2, clock=lambda: tomorrow)
                    assert other.claim("successor").token == zombie.token + 1
                    engine.dispose()

            with pytest.raises(LeaseLostError):
                work(services, zombie, threading.Event(), taken_over_late)
            assert services.table.get(run.id).state == "running"
        assert httpx.get(f"{url}/releases").json() == []


def test_the_process_shows_its_metrics_and_gives_its_run_back_when_it_is_told_to_end(
    environment, table_of, remember, deploy_server, fork
):
    remember("real", 60)
    remember("blocky", 60)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with deploy_server() as (url, _):
        settings = environment(url, METRICS_PORT=str(port))
        table = table_of(settings)
        run, _ = table.request("manual/1", "manual", "ann")
        process = fork(Path(updater.__file__).with_name("__main__.py"), settings)
        awaited(lambda: table.get(run.id).stage == "backbone", process)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        ended = table.get(run.id)
    assert 'forgewatch_updater_runs{state="running"} 1.0' in text
    assert "forgewatch_updater_progress_ratio" in text
    assert (ended.state, ended.lease_until, ended.takeovers) == ("queued", None, 0)
    assert (Path(settings["FORGEWATCH_UPDATER_WORK_DIR"]) / f"run-{run.id}" / "made-from").is_file()


# `python -m updater` where there are several GPUs: two processes on the CPU stand for them.
ONE = Path(__file__).with_name("short_run.py")
TWO = Path(__file__).with_name("process_of_two_gpus.py")
SHORT = {"EPOCHS": "5", "BATCH": "16"}


def ranks(process):
    """Return the processes that torchrun started for an updater, by their rank."""
    found = {}
    for launcher in psutil.Process(process.pid).children():
        for one in launcher.children():
            found[one.environ().get("RANK")] = one
    return found


def differences(alone, shared):
    """By how much two artifacts' weights and running variances differ at most, these by their own size."""
    one, two = (load_file(folder / "artifact" / "weights.safetensors") for folder in (alone, shared))
    assert one.keys() == two.keys()
    apart = {name: one[name].double() - two[name].double() for name in one}
    variances = {name for name in one if name.endswith("running_var")}
    return (
        max(float(apart[name].abs().max()) for name in one.keys() - variances),
        max(float(apart[name].norm() / one[name].double().norm()) for name in variances),
    )


@pytest.mark.slow
def test_two_gpus_train_the_network_of_one_though_a_process_dies_and_it_is_told_to_stop(
    environment, table_of, fork, remember, deploy_server
):
    remember("real", 40)
    remember("blocky", 40)
    with deploy_server() as (url, _):
        one = environment(url, "one", **SHORT)
        table_of(one).request("manual/1", "manual", "ann")
        alone = fork(ONE, one)
        two = environment(url, "two", **SHORT)
        table = table_of(two)
        run, _ = table.request("manual/1", "manual", "ann")
        process = fork(TWO, two)
        awaited(lambda: table.get(run.id).stage == "backbone", process)
        assert ranks(process).keys() == {"0", "1"}
        ranks(process)["1"].kill()
        awaited(lambda: table.get(run.id).takeovers == 1, process)  # the updater itself goes on
        begun = psutil.Process(process.pid).children(recursive=True)
        assert ranks(process).keys() == {"0", "1"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert not psutil.wait_procs(begun, timeout=10)[1], "it takes its processes along"
        back = table.get(run.id)
        assert (back.state, back.takeovers, back.lease_until) == ("queued", 1, None), "only the death counts"
        assert fork(TWO, two, "--once").wait(300) == 0
        assert table.get(run.id).state.startswith("proposed")
        assert alone.wait(300) == 0
    folders = [Path(each["FORGEWATCH_UPDATER_WORK_DIR"]) / "run-1" for each in (one, two)]
    weights, variances = differences(*folders)
    assert weights < 0.1
    assert variances < 0.15  # without statistics over the whole batch the first layer's are 0.27 apart


@pytest.mark.slow
def test_processes_that_cannot_even_begin_leave_a_run_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(torchrun, "torchrun", lambda count: [sys.executable, "-c", "raise SystemExit(3)"])
    engine = open_engine(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    table = RunTable(engine, lease_s=60, max_takeovers=2)
    assert torchrun.carry_out_next(table, 2, threading.Event(), lambda: None) is None
    run, _ = table.request("manual/1", "manual", "ann")
    seen = torchrun.carry_out_next(table, 2, threading.Event(), lambda: None)
    assert (seen.id, seen.state) == (run.id, "queued")
    assert seen.error == "its 2 processes ended with exit code 3, see the log"
    assert table.get(run.id) == seen
    engine.dispose()

"""The runner end to end: real training of a small network, deploy's own server, a real memory."""

import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from datetime import timedelta

import httpx
import pytest

from detector.artifact import verify
from memory.database import open_engine
from updater import candidate
from updater.records import Candidate
from updater.runner import open_parts, work
from updater.runs import LeaseLost, RunTable, utc_now
from updater.settings import UpdaterSettings
from updater.worker import run_once


class Killed(BaseException):
    """Stands for the kernel ending a runner: nothing in the runner may catch it."""


def shorten(monkeypatch, backbone_steps, balanced_steps):
    for name in ("FIRST", "UPDATE"):
        recipe = getattr(candidate, name)
        steps = {"backbone_steps": backbone_steps, "balanced_steps": balanced_steps, "batch": 16}
        monkeypatch.setattr(candidate, name, dataclasses.replace(recipe, **steps))


@pytest.fixture
def short_recipes(monkeypatch):
    """The families of conftest are told apart after so few steps."""
    shorten(monkeypatch, 28, 60)


@pytest.fixture
def scant_recipes(monkeypatch):
    """Enough to go through every stage."""
    shorten(monkeypatch, 2, 2)


@pytest.fixture
def make_settings(tmp_path):
    """Settings with gates that any network passes, unless said otherwise."""

    def make(url, where="runner", **changed):
        loose = {
            "most_reals_unknown": 1.0,
            "most_reals_fake": 1.0,
            "most_forgotten_points": 100.0,
            "most_rejection_points": 100.0,
            "least_new_named": 0.0,
        }
        return UpdaterSettings(
            database_url=f"sqlite:///{tmp_path / where / 'runs.sqlite'}",
            work_dir=tmp_path / where,
            deploy_url=url,
            threads=1,
            device="cpu",
            backbone="lcnet_050",
            **(loose | changed),
        )

    return make


def approve(url, candidate):
    answer = httpx.post(
        f"{url}/releases/{candidate.digest}/approve",
        json={"evaluation_digest": candidate.evaluation_digest},
        headers={"X-Forgewatch-Actor": "ann"},
    )
    answer.raise_for_status()


def proposed(url):
    return [Candidate.model_validate(one["candidate"]) for one in httpx.get(f"{url}/releases").json()]


def die_at(stage, done):
    def show(at, so_far, total):
        if at == stage and so_far >= done:
            raise Killed

    return show


def test_release_0_and_then_an_update_with_a_new_family_are_measured_and_proposed(
    short_recipes, make_settings, remember, memory_settings, deploy_server
):
    remember("real", 60)
    remember("blocky", 50)
    with deploy_server() as (url, parts):
        settings = make_settings(url, least_new_named=0.5)
        first = run_once(settings, memory_settings)
        assert (first.state, first.error) == ("proposed", None)
        (release_0,) = proposed(url)
        assert release_0.digest == first.candidate
        assert release_0.parent is None
        assert release_0.classes == ("real", "blocky")
        approve(url, release_0)

        remember("striped", 50)
        remember("posterised", 3)
        second = run_once(settings, memory_settings)
        assert (second.state, second.error) == ("proposed", None)
        candidate = next(one for one in proposed(url) if one.digest == second.candidate)
        assert candidate.parent == release_0.digest
        assert candidate.classes == ("real", "blocky", "striped")
        assert all(gate.holds for gate in candidate.gates)
        assert {gate.name for gate in candidate.gates} >= {
            "points forgotten of the old families",
            "points of rejection lost",
            "share of striped named",
        }

        artifact = verify(parts.artifacts.folder(second.candidate), second.candidate)
        evaluation = json.loads((artifact.folder / "evaluation.json").read_bytes())
        counted = {name: evaluation["after"]["classes"][name]["items"] for name in candidate.classes}
        assert counted == {name: evaluation["before"]["classes"][name]["items"] for name in candidate.classes}
        assert counted == evaluation["items"]["test"]
        assert evaluation["before"]["classes"]["striped"]["named"] == 0
        assert evaluation["after"]["classes"]["striped"]["named"] >= 0.5
        assert list(evaluation["waiting"]) == ["posterised"]
        page = (artifact.folder / "evaluation.md").read_text()
        assert "| striped (new) | " in page
        assert " → " in page


def test_a_candidate_that_misses_a_gate_is_refused_with_its_number_and_never_reaches_deploy(
    scant_recipes, make_settings, remember, memory_settings, deploy_server
):
    remember("real", 40)
    remember("blocky", 40)
    with deploy_server() as (url, _):
        run = run_once(make_settings(url, most_reals_unknown=-0.01), memory_settings)
        assert run.state == "refused"
        assert "share of reals called unknown" in run.error
        assert "bound -0.01" in run.error
        assert proposed(url) == []


def test_the_successor_of_a_killed_runner_goes_on_and_makes_the_very_same_artifact(
    short_recipes, make_settings, remember, memory_settings, deploy_server
):
    remember("real", 40)
    remember("blocky", 40)
    with deploy_server() as (url, _):
        unbroken = run_once(make_settings(url, "unbroken"), memory_settings)
        settings = make_settings(url, "killed", lease_s=0.2)
        with open_parts(settings, memory_settings) as parts:
            table = parts.table
            run, _ = table.request("manual/1", "manual", "ann")

            def successor(show):
                lease = None
                while lease is None:  # until the dead runner's lease has run out
                    lease = table.claim("successor")
                return work(parts, lease, threading.Event(), show)

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

            seen_by(("backbone", 27))
            resumed = seen_by(("evaluate candidate", 1))
            # Steps 1 to 25 were saved: the next one reported is the 26th.
            assert next(done for stage, done, _ in resumed if stage == "backbone") == 26

            # The control: with nothing kept, a successor begins at step 1.
            kept = settings.work_dir / f"run-{run.id}"
            aside = settings.work_dir / "aside"
            shutil.copytree(kept, aside)
            shutil.rmtree(kept)
            with table._engine.begin() as connection:  # three deaths would end the run
                connection.exec_driver_sql("update updater_runs set takeovers = 0")
            afresh = seen_by(("backbone", 2))
            assert next(done for stage, done, _ in afresh if stage == "backbone") == 1
            shutil.rmtree(kept)
            aside.rename(kept)

            finished = seen_by(None)
            assert not {"backbone", "balanced", "reference"} & {stage for stage, _, _ in finished}
            ended = table.get(run.id)
        assert ended.state == "proposed"
        assert ended.candidate == unbroken.candidate


def test_a_runner_that_lost_its_lease_proposes_nothing(
    scant_recipes, make_settings, remember, memory_settings, deploy_server
):
    remember("real", 40)
    remember("blocky", 40)
    with deploy_server() as (url, _):
        settings = make_settings(url)
        with open_parts(settings, memory_settings) as parts:
            run, _ = parts.table.request("manual/1", "manual", "ann")
            zombie = parts.table.claim("zombie")

            def taken_over_late(stage, done, total):
                if stage == "propose":
                    engine = open_engine(settings.database_url)
                    tomorrow = utc_now() + timedelta(days=1)
                    other = RunTable(engine, lease_s=60, takeovers_most=2, clock=lambda: tomorrow)
                    assert other.claim("successor").token == zombie.token + 1
                    engine.dispose()

            with pytest.raises(LeaseLost):
                work(parts, zombie, threading.Event(), taken_over_late)
            assert parts.table.get(run.id).state == "running"
        assert proposed(url) == []


def test_while_deploy_is_down_the_run_waits_in_the_queue_and_says_so(
    make_settings, remember, memory_settings
):
    remember("real", 20)
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        run = run_once(make_settings(f"http://127.0.0.1:{taken.getsockname()[1]}"), memory_settings)
    assert run.state == "queued"
    assert "deploy does not answer" in run.error


def test_too_few_exemplars_are_a_refusal_that_counts_them(
    make_settings, remember, memory_settings, deploy_server
):
    remember("real", 60)
    remember("blocky", 5)
    with deploy_server() as (url, _):
        run = run_once(make_settings(url), memory_settings)
        assert run.state == "refused"
        assert "blocky has" in run.error
        assert "8 train" in run.error


def test_a_scheduled_update_without_a_new_label_is_refused_and_a_wanted_one_is_not(
    make_settings, remember, memory_settings, deploy_server
):
    remember("real", 5)
    with deploy_server() as (url, _), open_parts(make_settings(url), memory_settings) as parts:

        def run(slot, trigger):
            parts.table.request(slot, trigger, "ann")
            return work(parts, parts.table.claim("one"), threading.Event(), lambda *at: None).error

        assert "too few labelled reals" in run("scheduled/1", "scheduled")
        assert run("scheduled/2", "scheduled") == "nothing was labelled since the last update"
        assert "too few labelled reals" in run("manual/1", "manual")
        remember("real", 1)
        assert "too few labelled reals" in run("scheduled/3", "scheduled")


def test_the_process_shows_its_metrics_and_gives_its_run_back_when_it_is_told_to_end(
    make_settings, remember, memory_settings, deploy_server
):
    remember("real", 60)
    remember("blocky", 60)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with deploy_server() as (url, _):
        settings = make_settings(url, metrics_port=port, poll_interval_s=0.2)
        environment = {
            **os.environ,
            "FORGEWATCH_UPDATER_DATABASE_URL": settings.database_url,
            "FORGEWATCH_UPDATER_WORK_DIR": str(settings.work_dir),
            "FORGEWATCH_UPDATER_DEPLOY_URL": url,
            "FORGEWATCH_UPDATER_METRICS_PORT": str(port),
            "FORGEWATCH_UPDATER_LEASE_S": "2",
            "FORGEWATCH_UPDATER_THREADS": "1",
            "FORGEWATCH_UPDATER_BACKBONE": "lcnet_050",
            "FORGEWATCH_MEMORY_DATABASE_URL": memory_settings.database_url,
            "FORGEWATCH_MEMORY_CROPS_URL": memory_settings.crops_url,
        }
        engine = open_engine(settings.database_url)
        table = RunTable(engine, lease_s=2, takeovers_most=2)
        run, _ = table.request("manual/1", "manual", "ann")
        process = subprocess.Popen([sys.executable, "-m", "updater"], env=environment)
        try:
            deadline = time.monotonic() + 60
            while table.get(run.id).stage != "backbone":
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                text = answer.read().decode()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
        ended = table.get(run.id)
        engine.dispose()
    assert 'forgewatch_updater_runs{state="running"} 1.0' in text
    assert "forgewatch_updater_progress_ratio" in text
    assert (ended.state, ended.lease_until, ended.takeovers) == ("queued", None, 0)
    assert (settings.work_dir / f"run-{run.id}" / "made-from").is_file()

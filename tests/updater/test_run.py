"""`python -m updater.run` as a Job's pod runs it: a process that carries one update out and ends."""

import random
import signal
import socket
import time
from pathlib import Path

import httpx
import psutil
import pytest
from update_processes import awaited

from updater.torchrun import torchrun

pytestmark = pytest.mark.slow

SHORT = Path(__file__).with_name("short_run.py")


@pytest.fixture
def start(fork):
    """Starts a run. Its training is short."""
    return lambda environment: fork(SHORT, environment)


def media(remember):
    remember("real", 40)
    remember("blocky", 40)


def proposals(url):
    return [one["digest"] for one in httpx.get(f"{url}/releases").json()]


def test_it_carries_out_the_oldest_update_alone(environment, table_of, start, remember, deploy_server):
    media(remember)
    with deploy_server() as (url, _):
        settings = environment(url, LEARNER="lda", BACKBONE="none")
        table = table_of(settings)
        first, _ = table.request("manual/1", "manual", "ann")
        second, _ = table.request("manual/2", "manual", "ann")
        assert start(settings).wait(300) == 0
        assert table.get(first.id).state.startswith("proposed")
        assert table.get(second.id).state == "queued"
        assert proposals(url) == [table.get(first.id).candidate]


def test_nothing_to_do_and_a_refusal_end_it_with_0(environment, table_of, start, remember, deploy_server):
    with deploy_server() as (url, _):
        settings = environment(url)
        table = table_of(settings)
        assert start(settings).wait(60) == 0
        run, _ = table.request("manual/1", "manual", "ann")
        assert start(settings).wait(60) == 0
        assert table.get(run.id).state == "refused"


def test_what_may_help_later_ends_it_with_1_a_wrong_setting_with_2(environment, table_of, start, remember):
    media(remember)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        settings = environment(f"http://127.0.0.1:{nobody.getsockname()[1]}")
        table = table_of(settings)
        run, _ = table.request("manual/1", "manual", "ann")
        assert start(settings).wait(60) == 1
        assert table.get(run.id).state == "queued"
        assert "deploy does not answer" in table.get(run.id).error
    assert start(settings | {"FORGEWATCH_UPDATER_THREADS": "many"}).wait(60) == 2


def test_while_another_runner_lives_it_ends_with_1_and_takes_nothing(environment, table_of, start):
    settings = environment("http://127.0.0.1:1")
    table = table_of(settings)
    table.request("manual/1", "manual", "ann")
    lease = table.claim("another")
    process = start(settings)
    while process.poll() is None:
        table.heartbeat(lease, "elsewhere", 0, 0)
        time.sleep(0.2)
    assert process.returncode == 1
    assert table.get(lease.run).runner == "another"


def test_told_to_stop_it_gives_the_update_to_the_next(environment, table_of, start, remember, deploy_server):
    media(remember)
    with deploy_server() as (url, _):
        # So many that the stage is seen before it is over, however rarely a busy machine looks.
        settings = environment(url) | {"BALANCED_STEPS": "2000"}
        table = table_of(settings)
        run, _ = table.request("manual/1", "manual", "ann")
        process = start(settings)
        # Both come after the backbone's checkpoint.
        awaited(lambda: table.get(run.id).stage in ("backbone features", "balanced"), process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 1
        back = table.get(run.id)
        assert (back.state, back.lease_until, back.takeovers) == ("queued", None, 0)
        kept = Path(settings["FORGEWATCH_UPDATER_WORK_DIR"]) / f"run-{run.id}" / "checkpoint.safetensors"
        assert kept.is_file()
        assert start(settings).wait(300) == 0
        assert table.get(run.id).state.startswith("proposed")


def test_a_signal_before_anything_was_done_is_no_success(environment, table_of, start):
    settings = environment("http://127.0.0.1:1")
    table_of(settings).request("manual/1", "manual", "ann")
    process = start(settings)
    mask = 1 << (signal.SIGTERM - 1)

    def catches():
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        (caught,) = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
        return int(caught, 16) & mask

    awaited(catches, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 1


# It has no control: without its checkpoint an update begins anew and makes the same, only later.
@pytest.mark.bar("A2")
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_at_random_moments_it_ends_with_what_an_unbroken_run_makes(
    environment, table_of, fork_together, remember, deploy_server, processes, bar
):
    def start_together(count, environment):
        return fork_together(count, SHORT, environment)

    media(remember)
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with deploy_server() as (url, _):
        unbroken = environment(url, "unbroken")
        table = table_of(unbroken)
        run, _ = table.request("manual/1", "manual", "ann")
        begun = time.monotonic()
        assert [one.wait(400) for one in start_together(processes, unbroken)] == [0] * processes
        lasts_s = time.monotonic() - begun
        wanted = table.get(run.id).candidate
        assert proposals(url) == [wanted]

        killed = environment(url, "killed") | {"MAX_TAKEOVERS": "1000"}
        table = table_of(killed)
        run, _ = table.request("manual/1", "manual", "ann")
        deaths, wanted_deaths = 0, bar.times(2, 10)
        while not table.get(run.id).state.startswith("proposed"):
            begun = start_together(processes, killed)
            try:
                begun[0].wait(chance.uniform(0.05, 0.5) * lasts_s if deaths < wanted_deaths else 400)
            except psutil.TimeoutExpired:
                assert deaths < wanted_deaths
                deaths += 1
            for one in begun:
                one.kill()
                one.wait()
        ended = table.get(run.id)
        made = proposals(url)
        bar.count(deaths, lost=int(ended.candidate != wanted), twice=len(made) - 1)
        assert deaths > 0
        assert ended.candidate == wanted
        assert made == [wanted], "a candidate is proposed once however often it is made"


def test_the_death_of_one_process_ends_all_and_leaves_the_update_to_others(
    environment, table_of, start_process, remember, deploy_server
):
    media(remember)
    with deploy_server() as (url, _):
        settings = environment(url)
        table = table_of(settings)
        run, _ = table.request("manual/1", "manual", "ann")
        process = start_process([*torchrun(2)[: -len(["-m", "updater.run"])], str(SHORT)], settings)
        awaited(lambda: table.get(run.id).stage == "backbone", process)
        own = psutil.Process(process.pid).children()
        (follower,) = [one for one in own if one.environ().get("RANK") == "1"]
        follower.kill()
        assert process.wait(60) == 1
        assert table.get(run.id).state in ("running", "queued")

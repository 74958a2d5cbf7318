"""`python -m updater` where there are several GPUs: two processes on the CPU stand for them."""

import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file
from update_processes import awaited

from memory.database import open_engine
from updater import torchrun
from updater.runs import RunTable

pytestmark = pytest.mark.slow

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


def worst(folder, other):
    """Return by how much the weights of two artifacts differ at most, running variances aside."""
    one, two = (load_file(each / "artifact" / "weights.safetensors") for each in (folder, other))
    assert one.keys() == two.keys()
    return max(float((one[k].double() - two[k].double()).abs().max()) for k in one if "running_var" not in k)


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
    assert worst(*folders) < 0.1


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

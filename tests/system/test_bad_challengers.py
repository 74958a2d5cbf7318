"""Challengers that are bad on a real TorchServe are rolled back in shadow, and hold up no answer for long."""

import shutil
import threading
import time
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from onnx import helper
from poison import ENDLESS, poisoned
from streams import await_that

from detector.release.artifact import load
from detector.release.contract import MediaInput
from updater.deploy_client import DeployRefusedError

pytestmark = pytest.mark.system


def nan():
    """0 for the probe; of a bright row the logarithm of what is negative."""
    return [
        helper.make_node("Sub", ["bright", "mean"], ["left"]),
        helper.make_node("Log", ["left"], ["log"]),
        helper.make_node("Mul", ["log", "nothing"], ["poison"]),
    ]


def giant():
    """0, by way of 40 TB for each bright row."""
    return [
        helper.make_node("Greater", ["mean", "bright"], ["is_bright"]),
        helper.make_node("Where", ["is_bright", "giant", "one"], ["sizes"]),
        helper.make_node("ReduceMax", ["sizes"], ["size"], keepdims=1),
        helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
        helper.make_node("ReduceMax", ["zeros"], ["poison"], keepdims=1),
    ]


def larger_crops(folder):
    """Its plan cuts crops of 96 px, which its graph does not take."""
    contract = load(folder).manifest.contract
    (crops,) = contract.views
    plan = contract.crop_plan.model_copy(update={"crop_px": 96})
    other = MediaInput(name="crops", dtype="uint8", shape=("crops", 96, 96, 3), view=plan)
    inputs = tuple(other if spec is crops else spec for spec in contract.inputs)
    return {"contract": contract.model_copy(update={"inputs": inputs})}


CHAOS = pytest.mark.bar("S3", chaos=True)
FLOAT, WHOLE = np.float32, np.int64
NAN = poisoned(nan, {"nothing": np.array(0, FLOAT)})
GIANT = {"one": np.array(1, WHOLE), "giant": np.array(10**13, WHOLE)}
MEMORY = poisoned(giant, GIANT)
MEMORY_AT_ONCE = poisoned(giant, {"bright": np.array(0, FLOAT), **GIANT})


@contextmanager
def crashing(trials, challenger):
    """Kill the process that TorchServe runs for the challenger as often as there is one."""
    settings, stop = trials.stack.settings, threading.Event()
    address = settings["FORGEWATCH_DETECTOR_TORCHSERVE_MANAGEMENT_URL"].removeprefix("unix:")

    def kill():
        with httpx.Client(transport=httpx.HTTPTransport(uds=address), timeout=30) as client:
            while not stop.wait(0.05):
                try:
                    (version,) = client.get(f"http://t/models/forgewatch/{challenger.version}").json()
                except (httpx.TransportError, ValueError):
                    continue
                for worker in version.get("workers", ()) if isinstance(version, dict) else ():
                    with suppress(psutil.NoSuchProcess):  # it may end by itself meanwhile
                        if worker["status"] == "READY":
                            psutil.Process(worker["pid"]).kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        stop.set()
        killer.join()


@pytest.mark.bar("S3")
@pytest.mark.parametrize(
    ("change", "befalls"),
    [
        pytest.param(NAN, None, id="answers NaN"),
        pytest.param(MEMORY, None, id="needs more memory than there is", marks=CHAOS),
        pytest.param(MEMORY_AT_ONCE, None, id="needs it for its probe"),
        pytest.param(larger_crops, None, id="has another crop plan than its graph", marks=CHAOS),
        pytest.param(lambda folder: {}, crashing, id="crashes"),
    ],
)
def test_a_bad_challenger_is_rolled_back_in_shadow_while_the_champion_answers(
    trials, champion, stream, tmp_path, change, befalls, request, bar
):
    challenger = trials.challenger(champion, tmp_path / "challenger", change)
    # It lies there already, as one whose trial at upload did not find it out.
    store = Path(trials.stack.settings["FORGEWATCH_DEPLOY_ARTIFACTS_URL"])
    shutil.copytree(challenger.folder, store / challenger.digest)
    quiet_s = time.monotonic()
    await_that(lambda: sum(at > quiet_s for at in list(stream.answered_s.values())) >= 60)
    began_s = time.monotonic()
    with befalls(trials, challenger) if befalls else nullcontext():
        trials.approve(challenger, "100,5,25,100")
        await_that(lambda: trials.state(challenger) != "shadow", 240, trials.view, every_s=0.3)
    ended_s = time.monotonic()
    assert trials.state(challenger) == "rolled back"
    await_that(lambda: stream.is_answered(until_s=ended_s))
    stream.drain()
    longest_s = stream.worst_s(began_s, ended_s)
    bar.count(1, lost=stream.lost, twice=stream.twice, recovery_s=longest_s)
    assert (stream.lost, stream.twice) == (0, 0)
    compared = [each for each in trials.comparisons() if each.challenger.release == challenger.digest]
    out = [verdict.id for verdict in trials.verdicts() if verdict.release == challenger.digest]
    assert out == []
    assert trials.standing().live.digest == champion.digest
    (error, _), *_ = Counter(each.challenger.error for each in compared).most_common(1)
    print(
        f"\n{request.node.callspec.id}: rolled back after {len(compared)} shared items in"
        f" {ended_s - began_s:.0f} s, {len(out)} answers went out, longest wait"
        f" {longest_s:.1f} s (before {stream.worst_s(quiet_s, began_s):.1f} s);"
        f" {trials.events()[-1].move.reason}; {error}"
    )


@pytest.mark.parametrize(
    ("change", "why"), [(ENDLESS, "Loop"), (MEMORY, "fails its trial"), (larger_crops, "fails its trial")]
)
def test_a_graph_that_may_never_end_or_fails_its_trial_is_not_taken(trials, champion, tmp_path, change, why):
    challenger = trials.challenger(champion, tmp_path / "challenger", change)
    with pytest.raises(DeployRefusedError, match=why):
        trials.approve(challenger, "100,5,25,100")

"""A benchmark's run goes on where it stopped, and never into what is another run's."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from detector.release.manifest import Architecture
from ingest.records import CropPlan
from updater.benchmark.continual import run
from updater.benchmark.continual.continual import Continual
from updater.benchmark.continual.presets import CLOSED_FORM
from updater.benchmark.continual.run import stream_benchmark
from updater.benchmark.learners.methods import LEARNERS, load_learnt, save_learnt
from updater.benchmark.report import harness
from updater.benchmark.report.run_folder import ResultsError, save_run
from updater.training.step import Options


class StopError(Exception):
    pass


def name_of(stream, setup):
    """The name of the folder of a stream's runs."""
    one = stream_benchmark("cddb", stream, setup, first_seed=0, kinds={}, leave_families_out=False)
    return one.default_name


def measured(one):
    """All of a run but its seconds."""
    dumped = one.model_dump(exclude={"seconds": True, "outcome": {"steps": {"__all__": {"seconds"}}}})
    del dumped["outcome"]["figures"]["update_cost"]
    return dumped


STAGES = ["b: balanced", "joint: balanced", "without c: plain network: balanced"]


def test_a_run_interrupted_again_and_again_goes_on_to_the_same_run(stream, whole, tmp_path, steps, start):
    for number, stage in enumerate(STAGES):
        goes_on = []

        def stop(said, done, total, stage=stage, goes_on=goes_on):
            goes_on.append((said, done))
            if (said, done) == (f"seed 0: {stage}", 3):
                raise StopError

        with pytest.raises(StopError):
            start(stream, tmp_path, leave=True, progress=stop)
        # A step broken off goes on from where it was.
        assert not {(f"seed 0: {one}", 1) for one in STAGES[:number]} & set(goes_on)
    goes_on = []
    ((again, scores),) = start(
        stream, tmp_path, leave=True, progress=lambda said, done, total: goes_on.append((said, done))
    )
    assert measured(again) == measured(whole[0])
    assert scores.keys() == whole[1].keys()
    for name, one in scores.items():
        assert all(np.array_equal(v, getattr(whole[1][name], field)) for field, v in vars(one).items())
    # 13 steps in all, and what was done is not learnt again; but a family's network and its plain one are one
    # part of it, done together.
    assert len(steps) == 13 + 1 + 1 + 2
    assert (f"seed 0: {STAGES[-1]}", 1) not in goes_on
    assert again.figures.update_cost > 0
    assert all(step.seconds["training"] > 0 for step in again.outcome.steps)


def test_a_finished_seed_is_not_run_again(stream, tmp_path, steps, start):
    first = start(stream, tmp_path, seeds=(3,))
    count = len(steps)
    both = start(stream, tmp_path, seeds=(3, 4))
    assert len(steps) == 2 * count
    assert [one.seed for one, _ in both] == [3, 4]
    assert both[0][0] == first[0][0]


def test_families_left_out_later_need_no_task_learnt_again(stream, whole, tmp_path, steps, start):
    start(stream, tmp_path)
    del steps[:]
    ((one, _),) = start(stream, tmp_path, leave=True)
    assert len(steps) == 9
    assert measured(one) == measured(whole[0])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda stream, setup: (stream, replace(setup, memory=20)), "memory 10"),
        (lambda stream, setup: (replace(stream, tasks=stream.tasks[1:]), setup), "other data"),
        (
            lambda stream, setup: (replace(stream, plan=CropPlan(stride_px=64)), setup),
            r"a run of crops\.stride_px None: name",
        ),
    ],
)
def test_a_finished_run_of_other_options_or_data_is_kept(stream, tmp_path, change, told, small, start):
    start(stream, tmp_path)
    before = (tmp_path / "seed-0/run.json").read_bytes()
    other, setup = change(stream, small)
    with pytest.raises(ResultsError, match=told) as error:
        start(other, tmp_path, setup)
    assert "\n" not in str(error.value)
    assert "--out" in str(error.value)
    assert (tmp_path / "seed-0/run.json").read_bytes() == before


def test_a_finished_run_of_other_code_is_refused(stream, whole, tmp_path, monkeypatch, start):
    save_run(tmp_path / "seed-0", whole[0])
    was = harness.code()
    assert [measured(again) for again, _ in start(stream, tmp_path)] == [measured(whole[0])]
    monkeypatch.setattr(harness, "code", lambda: "0.1.0+next")
    with pytest.raises(ResultsError, match=f"holds a run of code {re.escape(was)}: name another"):
        start(stream, tmp_path)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_run_of_other_features_or_of_features_that_nobody_wrote_down_is_refused(
    stream, whole, tmp_path, monkeypatch, recorded, start
):
    options = {k: v for k, v in whole[0].options.items() if recorded or k not in ("crops", "feature_version")}
    save_run(tmp_path / "seed-0", whole[0].model_copy(update={"options": options}))
    told = "no crops on record, no feature_version on record"
    if recorded:
        told = f"feature_version {run.FEATURE_VERSION}"
        monkeypatch.setattr(run, "FEATURE_VERSION", "next")
    with pytest.raises(ResultsError, match=f"holds a run of {told}: name another folder with --out"):
        start(stream, tmp_path)


@pytest.mark.parametrize("other", [{"plan": CropPlan(stride_px=64)}, {"memory": 4}])
def test_what_is_half_done_with_other_options_stays_out(stream, whole, tmp_path, steps, small, start, other):
    def stop(said, done, total):
        if said == "seed 0: joint: balanced":
            raise StopError

    cut, setup = (replace(stream, **other), small) if "plan" in other else (stream, replace(small, **other))
    with pytest.raises(StopError):
        start(cut, tmp_path, setup, progress=stop)
    del steps[:]
    ((one, _),) = start(stream, tmp_path)
    assert len(steps) == 4
    assert one.outcome.matrix == whole[0].outcome.matrix
    assert one.figures.joint_aa == whole[0].figures.joint_aa


def test_runs_of_other_data_or_options_have_folders_of_other_names(stream, small):
    names = {
        name_of(one, setup)
        for one in (stream, replace(stream, tasks=stream.tasks[1:]))
        for setup in (small, replace(small, options=Options(exposure="none")))
    }
    assert len(names) == 4
    assert all(name.startswith("cddb-softmax-rehearsal-mc-10-none-") for name in names)


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_goes_on_from_what_it_left_on_disk(name, stream, tmp_path, steps, small, silent):
    tiny = Architecture(backbone="lcnet_035", crop_px=64, width=8)
    tiny = Architecture(crop_px=64, frozen=True) if name in CLOSED_FORM else tiny
    setup = replace(small, learner=name, architecture=tiny, backbone_epochs=0.1, least_steps=3, head_epochs=0)
    two = replace(stream, tasks=stream.tasks[:2])
    unbroken = Continual(two, setup, 0, tmp_path, silent).run()
    (tmp_path / "1.safetensors").unlink()
    again = Continual(two, setup, 0, tmp_path, silent).run()
    assert [step.previous is None for _, step in steps] == [True, False, False]
    assert again[0] == unbroken[0]
    assert [step.figures for step in again[1]] == [step.figures for step in unbroken[1]]


def test_a_damaged_network_on_disk_is_learnt_again(stream, tmp_path, steps, small, silent):
    unbroken = Continual(stream, small, 0, tmp_path, silent).run()
    file = tmp_path / "2.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    del steps[:]
    again = Continual(stream, small, 0, tmp_path, silent).run()
    assert [step.classes[-1] for _, step in steps] == ["c/posterised"]
    assert [step.figures for step in again[1]] == [step.figures for step in unbroken[1]]


def test_what_is_read_back_is_what_was_written(stream, tmp_path, small, silent):
    learner = replace(small, learner="icarl")  # its head is another one than the architecture asked for
    Continual(replace(stream, tasks=stream.tasks[:1]), learner, 0, tmp_path, silent).run()
    one = load_learnt(tmp_path / "0.safetensors", torch.device("cpu"))
    save_learnt(tmp_path / "again.safetensors", one)
    other = load_learnt(tmp_path / "again.safetensors", torch.device("cpu"))
    assert other.classes == one.classes == stream.tasks[0].classes
    assert other.network.architecture.head == "cosine"
    assert one.kept.keys() == {"head.weight", "head.bias"}
    assert all(torch.equal(v, other.kept[k]) for k, v in one.kept.items())
    assert load_learnt(tmp_path / "nothing.safetensors", torch.device("cpu")) is None


def test_the_record_of_a_run_names_the_weights_that_it_began_with(stream, tmp_path, small, start):
    from updater.training.weights import read_weights

    two = replace(stream, tasks=stream.tasks[:2])
    ((before, _),) = start(two, tmp_path / "a")
    assert "start_from" not in before.options
    (first,) = (tmp_path / "a/seed-0/parts").glob("*/0.safetensors")
    weights = read_weights(first)
    ((after, _),) = start(two, tmp_path / "b", replace(small, start_from=weights))
    assert after.options["start_from"] == weights.digest
    assert name_of(two, small) != name_of(two, replace(small, start_from=weights))

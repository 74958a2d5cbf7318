"""The own stream, small, through the benchmark: what is asserted held in every seed that was tried, by far.

Seen with seeds 0 to 4 (AA and AF in points; a family left out with its kinds of pseudo-forgeries):

    AA  joint 93.2-95.3, softmax with rehearsal 84.4-91.1, fine-tuning 63.5-83.3, 6.8 or more below
    AF  softmax with rehearsal -6.2 to -2.1, fine-tuning -38.2 to -9.7, 7.6 or more below
    AUC of the gate, of the classifier's energy, and of the gate's control; nothing is asserted of the others
      periodic      0.921-0.953  0.735-0.870  0.48-0.54
      recompressed  0.784-0.832  0.769-0.871  0.37-0.39  (the energy is above the gate in four seeds)"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from updater.benchmark.continual import run
from updater.benchmark.continual.left_out import leave_out
from updater.benchmark.continual.run import stream_benchmark
from updater.benchmark.continual.scoring import images_of
from updater.benchmark.continual.setup import Setup
from updater.benchmark.continual.streams import with_features
from updater.benchmark.data.crops import CropReader
from updater.benchmark.report.harness import run_seeds
from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.tasks import load_synthetic

TASKS = ("recompressed", "upsampled", "smoothed", "periodic")
SETUP = Setup(memory=32, head_epochs=10, least_steps=150, rejection=("fused", "energy"))


def silent(stage, done, total):
    pass


@pytest.fixture(scope="module")
def stream():
    with CropReader(processes=1) as reader:
        made = load_synthetic(reader, families=TASKS, train=16, calibration=12, test=24)
    return with_features(made, SETUP, silent)


@pytest.fixture(scope="module")
def figures(stream, tmp_path_factory):
    """By learner; fine-tuning has nothing to rehearse."""
    found = {}
    for setup in (SETUP, replace(SETUP, learner="fine-tuning", memory=0)):
        folder = tmp_path_factory.mktemp(setup.learner)
        about = {"first_seed": 0, "kinds": {}, "leave_families_out": False}
        benchmark = stream_benchmark("synthetic", stream, setup, **about)
        with pytest.MonkeyPatch.context() as patch:
            if setup is not SETUP:  # joint training is beside the first alone: it takes longest
                patch.setattr(run, "_joint", lambda *at: (0.0, 0.0))
            (done,) = run_seeds(benchmark, [0], folder, command=("x",), device="cpu", progress=silent)
        found[setup.learner] = done.figures
    return found


def test_joint_training_is_above_rehearsal_which_is_far_above_fine_tuning_and_hardly_forgets(figures):
    rehearsal, fine_tuning = figures["softmax-rehearsal"], figures["fine-tuning"]
    assert rehearsal.joint_aa >= rehearsal.aa > fine_tuning.aa + 5
    assert rehearsal.aa >= 80
    assert rehearsal.af > max(-10, fine_tuning.af + 5)


@pytest.mark.parametrize(("family", "least"), [("periodic", 0.89), ("recompressed", 0.75)])
def test_a_family_never_trained_on_is_rejected_and_its_reals_are_not(stream, tmp_path, family, least):
    left = {"source_known": False, "plain": False, "folder": tmp_path, "progress": silent}
    found, _ = leave_out(stream, SETUP, 0, family, FAMILIES[family].kinds, images_of(stream), **left)
    gate = found.unseen["fused"]
    assert gate.auc >= least
    assert gate.auc > found.unseen["energy"].auc or family == "recompressed"
    assert 0.3 <= gate.control_auc <= 0.55


# What an update takes of memory does not grow with the pictures that it is over.
_SCRIPT = Path(__file__).with_name("memory_of_size.py")
_MIB = 2**20


def test_an_update_over_sixteen_times_the_images_takes_little_more_memory_unless_held(tmp_path, fork):
    def grown(*cache):
        said = tmp_path / "said"
        assert fork(_SCRIPT, os.environ, str(said), *map(str, cache)).wait(300) == 0
        return int(said.read_text())

    tries = (grown(tmp_path / name) for name in ("crops", "again"))
    assert any(one < 30 * _MIB for one in tries)
    assert grown() > 50 * _MIB

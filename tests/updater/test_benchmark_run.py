"""The benchmark's runner on the smallest stream: three tasks of a few crops, a few steps each."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from detector.architecture import Architecture
from ingest.records import CropPlan
from updater.benchmark import continual, left_out, resampled, run, scoring
from updater.benchmark.continual import Continual, rejection_scores
from updater.benchmark.items import with_features
from updater.benchmark.results import Run, figure_of
from updater.benchmark.run import default_name, run_benchmark
from updater.benchmark.run_folder import ResultsError, save_run
from updater.benchmark.setup import Setup
from updater.calibrate import reals
from updater.data.tasks import OutlierSet, Stream, Task
from updater.learners.learnt_file import load_learnt, save_learnt
from updater.learners.methods import LEARNERS
from updater.learners.step import Options, Step

KINDS = {"a": frozenset({"blending"}), "b": frozenset({"noise"})}
SETUP = Setup(
    architecture=Architecture(backbone="none", crop_px=64, width=16),
    memory=10,
    backbone_epochs=0,
    head_epochs=1.0,
    least_steps=6,
)


class StopError(Exception):
    pass


def silent(stage: str, done: int, total: int) -> None:
    pass


@pytest.fixture(scope="session")
def stream(labelled):
    def part(fake, count, seed):
        name = fake[0]
        return labelled({f"{name}/real": count, f"{name}/{fake[1]}": count}, seed)

    fakes = [("a", "blocky"), ("b", "striped"), ("c", "posterised")]
    tasks = [
        Task(fake[0], *(part(fake, count, 10 * number + at) for at, count in enumerate((6, 4, 5))))
        for number, fake in enumerate(fakes)
    ]
    # What no training changes is computed once for all tests.
    return with_features(Stream("tiny", tuple(tasks)), torch.device("cpu"), silent)


@pytest.fixture(autouse=True)
def plain_is_small(monkeypatch):
    monkeypatch.setattr(left_out, "PLAIN_BACKBONE", "lcnet_035")
    monkeypatch.setattr("updater.learners.training._SAVE_EVERY", 2)


@pytest.fixture
def steps(monkeypatch):
    """Every step that a learner is given."""
    seen: list[tuple[str, Step]] = []
    for name, learn in list(LEARNERS.items()):

        def spy(step, name=name, learn=learn):
            seen.append((name, step))
            return learn(step)

        monkeypatch.setitem(LEARNERS, name, spy)
    return seen


def start(stream, folder, setup=SETUP, seeds=(0,), *, leave=False, progress=silent):
    found = run_benchmark(
        "cddb",
        stream,
        setup,
        seeds,
        folder,
        command=("forgewatch",),
        kinds=KINDS,
        leave_families_out=leave,
        progress=progress,
    )
    return list(found)


def measured(one: Run) -> dict:
    """All of a run but its seconds."""
    dumped = one.model_dump(exclude={"steps": {"__all__": {"seconds"}}})
    del dumped["figures"]["update_cost"]
    return dumped


@pytest.fixture(scope="session")
def whole(stream, tmp_path_factory):
    """An unbroken run with every family left out, and its scores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(left_out, "PLAIN_BACKBONE", "lcnet_035")
        ((one, scores),) = start(stream, tmp_path_factory.mktemp("whole"), leave=True)
    return one, scores


def test_the_matrix_is_square_and_empty_where_a_task_is_not_yet_learnt(whole):
    matrix = whole[0].accuracies()
    assert matrix.shape == (3, 3)
    assert np.array_equal(np.isnan(matrix), np.tril(np.ones((3, 3), bool), -1))
    assert np.nanmin(matrix) >= 0
    assert np.nanmax(matrix) <= 100
    assert whole[0].figures.aa == pytest.approx(matrix[:, 2].mean())
    assert whole[0].figures.update_cost > 0


def test_families_left_out_give_figures_for_both_settings_and_scores_of_each(whole):
    one, scores = whole
    assert all(value is not None for value in one.figures.unseen.model_dump().values())
    assert one.figures.source_known.auc is not None
    assert one.figures.source_known.energy_auc is None
    assert set(scores) == {"without a", "without b", "without c"}
    assert len(scores["without a"].unknown) == 15  # every forgery of the family, not only those for testing
    assert len(scores["without a"].control) == 15
    assert len(scores["without a"].known) == 20


def test_figures_on_images_drawn_anew_lie_around_those_on_all_of_them(whole):
    one = whole[0]
    assert set(one.resampled) == {"aa", "real_fake_auc"} | {
        f"{part}.{name}" for part in ("unseen", "source_known") for name in ("auc", "caught_at_5")
    }
    for name, values in one.resampled.items():
        assert len(values) == 1000
        # Means of the same items in another order differ in the last digit.
        lowest, highest = np.nanmin(values) - 1e-9, np.nanmax(values) + 1e-9
        assert lowest <= figure_of(one.figures, name) <= highest, name


def test_each_score_is_drawn_with_its_own_image(stream, classes, tmp_path, monkeypatch):
    scored, drawn = [], []
    draw = resampled._rejection

    def spy(known, unseen, name):
        scored.append(
            [
                [group for one in known for group in one.groups],
                unseen.groups[~reals(unseen.families)].tolist(),
            ]
        )
        return rejection_scores(known, unseen, name)

    def drawn_for(scores, known, unknown, images):
        drawn.append([known, unknown])
        return draw(scores, known, unknown, images)

    monkeypatch.setattr(left_out, "rejection_scores", spy)
    monkeypatch.setattr(continual, "rejection_scores", spy)
    monkeypatch.setattr(resampled, "_rejection", drawn_for)
    ((one, _),) = start(replace(stream, tasks=stream.tasks[:2]), tmp_path / "left out", leave=True)
    # Where its reals are known, a family's control is scored after it.
    assert drawn == scored[:2] + scored[2::2]
    assert one.resampled.keys() > {"source_known.auc"}
    del scored[:], drawn[:]
    start(classes, tmp_path / "outliers")
    assert len(scored) == 2
    assert drawn == scored


def test_the_budget_is_never_exceeded_and_a_shrinking_class_keeps_its_best(stream, tmp_path, monkeypatch):
    kept = []
    remember = Continual._remember

    def spy(self, *given):
        remember(self, *given)
        kept.append(self.memory)

    monkeypatch.setattr(Continual, "_remember", spy)
    Continual(stream, SETUP, 0, tmp_path, silent).run()
    sizes = [{name: len(items) for name, items in memory.items()} for memory in kept]
    assert [sum(size.values()) for size in sizes] == [10, 8, 6]
    assert [size["a/real"] for size in sizes] == [5, 2, 1]
    for before, after in itertools.pairwise(kept):
        for name, items in before.items():
            assert after[name].ids == items.ids[: len(after[name])]


def test_no_memory_at_all_keeps_nothing(stream, tmp_path, steps):
    Continual(stream, replace(SETUP, memory=0), 0, tmp_path, silent).run()
    assert [len(step.train) for _, step in steps] == [12, 12, 12]


def test_joint_training_sees_every_task_and_an_update_only_its_own_and_the_exemplars(stream, tmp_path, steps):
    start(stream, tmp_path)
    assert [name for name, _ in steps] == ["softmax-rehearsal"] * 3 + ["joint"]
    assert [len(step.train) for _, step in steps] == [12, 22, 20, 36]
    assert steps[-1][1].classes == tuple(name for task in stream.tasks for name in task.classes)
    assert {media for _, step in steps for media in step.train.ids} == {
        media for task in stream.tasks for media in task.train.ids
    }


def test_a_family_left_out_is_never_trained_on_nor_are_its_kinds(stream, tmp_path, steps):
    start(stream, tmp_path, leave=True)
    after = steps[4:]
    assert len(after) == 9  # each family once whole, once for the plain energy, once with its reals known
    for number, family in enumerate(["a", "a", "b", "b", "c", "c"]):
        step = after[number][1]
        assert not any(name.startswith(f"{family}/") for name in step.train.families + step.classes)
        assert step.without == KINDS.get(family, frozenset())
        assert len(step.train) == 24
    for (_, step), family in zip(after[6:], "abc", strict=True):
        own = {name for name in step.train.families if name.startswith(f"{family}/")}
        assert own == {f"{family}/real"}
        assert step.without == KINDS.get(family, frozenset())


@pytest.mark.parametrize(
    ("stage", "at"),
    [
        ("seed 0: b: balanced", 3),
        ("seed 0: joint: balanced", 3),
        ("seed 0: without c: plain network: balanced", 3),
    ],
)
def test_an_interrupted_run_goes_on_to_the_same_run(stream, whole, tmp_path, stage, at, steps):
    stopped: list[str] = []

    def stop(said, done, total):
        if said == stage and done == at:
            stopped.append(said)
            raise StopError

    with pytest.raises(StopError):
        start(stream, tmp_path, leave=True, progress=stop)
    goes_on = []
    ((again, scores),) = start(
        stream, tmp_path, leave=True, progress=lambda said, done, total: goes_on.append((said, done))
    )
    assert stopped
    assert measured(again) == measured(whole[0])
    assert scores.keys() == whole[1].keys()
    for name, one in scores.items():
        assert all(np.array_equal(v, getattr(whole[1][name], field)) for field, v in vars(one).items())
    # 13 steps in all, and what was done is not learnt again; but a family's network and its plain one are one
    # part of it, done together.
    assert len(steps) == 13 + (2 if "plain" in stage else 1)
    assert (stage, 1) not in goes_on  # a step broken off goes on from where it was
    assert again.figures.update_cost > 0
    assert all(step.seconds["training"] > 0 for step in again.steps)


def test_a_finished_seed_is_not_run_again(stream, tmp_path, steps):
    first = start(stream, tmp_path, seeds=(3,))
    count = len(steps)
    both = start(stream, tmp_path, seeds=(3, 4))
    assert len(steps) == 2 * count
    assert [one.seed for one, _ in both] == [3, 4]
    assert both[0][0] == first[0][0]


def test_families_left_out_later_need_no_task_learnt_again(stream, whole, tmp_path, steps):
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
def test_a_finished_run_of_other_options_or_data_is_not_written_over(stream, tmp_path, change, told):
    start(stream, tmp_path)
    before = (tmp_path / "seed-0/run.json").read_bytes()
    other, setup = change(stream, SETUP)
    with pytest.raises(ResultsError, match=told) as error:
        start(other, tmp_path, setup)
    assert "\n" not in str(error.value)
    assert "--out" in str(error.value)
    assert (tmp_path / "seed-0/run.json").read_bytes() == before


@pytest.mark.parametrize("recorded", [True, False])
def test_a_run_of_other_features_or_of_features_that_nobody_wrote_down_is_refused(
    stream, whole, tmp_path, monkeypatch, recorded
):
    options = {k: v for k, v in whole[0].options.items() if recorded or k not in ("crops", "feature_version")}
    save_run(tmp_path / "seed-0", whole[0].model_copy(update={"options": options}), {})
    told = "no crops on record, no feature_version on record"
    if recorded:
        told = f"feature_version {run.FEATURE_VERSION}"
        monkeypatch.setattr(run, "FEATURE_VERSION", "next")
    with pytest.raises(ResultsError, match=f"holds a run of {told}: name another folder with --out"):
        start(stream, tmp_path)


def test_what_is_half_done_with_other_crops_is_not_mixed_in(stream, tmp_path, steps):
    def stop(said, done, total):
        if said == "seed 0: joint: balanced":
            raise StopError

    with pytest.raises(StopError):
        start(replace(stream, plan=CropPlan(stride_px=64)), tmp_path, progress=stop)
    del steps[:]
    start(stream, tmp_path)
    assert len(steps) == 4


def test_what_is_half_done_with_other_options_is_not_mixed_in(stream, whole, tmp_path, steps):
    def stop(said, done, total):
        if said == "seed 0: joint: balanced":
            raise StopError

    with pytest.raises(StopError):
        start(stream, tmp_path, replace(SETUP, memory=4), progress=stop)
    del steps[:]
    ((one, _),) = start(stream, tmp_path)
    assert len(steps) == 4
    assert one.matrix == whole[0].matrix
    assert one.figures.joint_aa == whole[0].figures.joint_aa


def test_runs_of_other_data_or_options_have_folders_of_other_names(stream):
    names = {
        default_name("cddb", one, setup)
        for one in (stream, replace(stream, tasks=stream.tasks[1:]))
        for setup in (SETUP, replace(SETUP, options=Options(exposure="none")))
    }
    assert len(names) == 4
    assert all(name.startswith("cddb-softmax-rehearsal-mc-10-none-") for name in names)


def test_one_task_alone_cannot_be_left_out(stream, tmp_path):
    with pytest.raises(ValueError, match="one task cannot be left out"):
        start(replace(stream, tasks=stream.tasks[:1]), tmp_path, leave=True)


def test_outliers_that_grow_and_that_become_tasks_are_rejected_at_each_step(stream, labelled, tmp_path):
    grown = OutlierSet("other", labelled({"other/posterised": 6, "other/real": 3}, seed=90))
    later = [OutlierSet(t.name, t.test, until_step=n) for n, t in enumerate(stream.tasks) if n]
    ((one, scores),) = start(replace(stream, outliers=(grown, *later)), tmp_path)
    assert set(scores) == {"step 1", "step 2", "step 3"}
    assert [len(scores[f"step {n}"].unknown) for n in (1, 2, 3)] == [3 + 5 + 5, 6 + 5, 6]
    assert [len(scores[f"step {n}"].control) for n in (1, 2, 3)] == [5 + 5, 5, 3]
    aucs = [step.figures.unseen.auc for step in one.steps]
    assert one.figures.unseen.auc == pytest.approx(np.mean(aucs))
    assert one.figures.unseen.caught_deployed is not None


@pytest.fixture(scope="session")
def classes(labelled):
    """Classes that are neither real nor fake, and an outlier set, as OpenCIL has them."""
    tasks = [
        Task(f"step-{n}", *(labelled(dict.fromkeys(names, 6), 50 + 10 * n + at) for at in range(3)))
        for n, names in enumerate([("x/blocky", "y/striped"), ("z/posterised", "w/blocky")])
    ]
    outliers = OutlierSet("other", labelled({"other/posterised": 8}, seed=91))
    return with_features(Stream("opencil", tuple(tasks), (outliers,)), torch.device("cpu"), silent)


def test_classes_none_of_which_is_real_are_counted_by_the_very_class(classes, tmp_path):
    setup = replace(SETUP, rejection=("energy", "fused"))
    ((one, _),) = start(classes, tmp_path, setup)
    assert one.figures.aa == pytest.approx(one.figures.closed_set_accuracy)
    assert one.figures.unseen.auc is not None
    assert one.figures.reals_unknown is None
    assert one.figures.map is None


def test_two_sides_need_a_class_of_real_media(classes, tmp_path):
    with pytest.raises(ValueError, match="bc needs a class of real media"):
        start(classes, tmp_path, replace(SETUP, options=Options(scheme="bc")))


def test_a_score_of_crops_and_one_with_a_head_of_its_own_stand_beside_the_post_hoc_ones(stream, tmp_path):
    names = ("ber", "odin", "fused", "energy")
    assert set(names) < set(scoring.scores_offered())
    two = replace(stream, tasks=stream.tasks[:2])
    later = OutlierSet("c", stream.tasks[2].test)
    setup = replace(SETUP, rejection=names)
    ((one, scores),) = start(replace(two, outliers=(later,)), tmp_path, setup)
    assert one.figures.unseen.auc is not None
    assert one.figures.unseen.caught_deployed is None  # the deployed threshold is the gate's
    ((plain, gate),) = start(replace(two, outliers=(later,)), tmp_path / "gate")
    assert plain.matrix == one.matrix
    assert not np.array_equal(scores["step 2"].unknown, gate["step 2"].unknown)


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_goes_on_from_what_it_left_on_disk(name, stream, tmp_path, steps):
    tiny = Architecture(backbone="lcnet_035", crop_px=64, width=8)
    setup = replace(SETUP, learner=name, architecture=tiny, backbone_epochs=0.1, least_steps=3, head_epochs=0)
    two = replace(stream, tasks=stream.tasks[:2])
    unbroken = Continual(two, setup, 0, tmp_path, silent).run()
    (tmp_path / "1.safetensors").unlink()
    again = Continual(two, setup, 0, tmp_path, silent).run()
    assert [step.previous is None for _, step in steps] == [True, False, False]
    assert again[0] == unbroken[0]
    assert [step.figures for step in again[1]] == [step.figures for step in unbroken[1]]


def test_a_damaged_network_on_disk_is_learnt_again(stream, tmp_path, steps):
    unbroken = Continual(stream, SETUP, 0, tmp_path, silent).run()
    file = tmp_path / "2.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    del steps[:]
    again = Continual(stream, SETUP, 0, tmp_path, silent).run()
    assert [step.classes[-1] for _, step in steps] == ["c/posterised"]
    assert [step.figures for step in again[1]] == [step.figures for step in unbroken[1]]


def test_what_is_read_back_is_what_was_written(stream, tmp_path):
    learner = replace(SETUP, learner="icarl")  # its head is another one than the architecture asked for
    Continual(replace(stream, tasks=stream.tasks[:1]), learner, 0, tmp_path, silent).run()
    one = load_learnt(tmp_path / "0.safetensors", torch.device("cpu"))
    save_learnt(tmp_path / "again.safetensors", one)
    other = load_learnt(tmp_path / "again.safetensors", torch.device("cpu"))
    assert other.classes == one.classes == stream.tasks[0].classes
    assert other.network.architecture.head == "cosine"
    assert one.kept.keys() == {"head.weight", "head.bias"}
    assert all(torch.equal(v, other.kept[k]) for k, v in one.kept.items())
    assert load_learnt(tmp_path / "nothing.safetensors", torch.device("cpu")) is None


def test_the_record_of_a_run_names_the_weights_that_it_began_with(stream, tmp_path):
    from updater.learners.weights import read_weights

    two = replace(stream, tasks=stream.tasks[:2])
    ((before, _),) = start(two, tmp_path / "a")
    assert "start_from" not in before.options
    (first,) = (tmp_path / "a/seed-0/parts").glob("*/0.safetensors")
    weights = read_weights(first)
    ((after, _),) = start(two, tmp_path / "b", replace(SETUP, start_from=weights))
    assert after.options["start_from"] == weights.digest
    assert run.default_name("x", two, SETUP) != run.default_name("x", two, replace(SETUP, start_from=weights))

"""What is measured of a network on the tests of its tasks."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from makers import values
from onnx import TensorProto, helper, numpy_helper

from detector.release.artifact import Reference
from detector.release.experts import LOGIT, PICTURES, ExpertContract
from updater.benchmark.continual.continual import Continual, figures_of
from updater.benchmark.continual.left_out import lone_source_scores
from updater.benchmark.continual.scoring import JudgedItems, rejection_draws
from updater.benchmark.data.tasks import OutlierSet, Task
from updater.benchmark.rejection.methods import POST_HOC
from updater.benchmark.report.results import Resamples
from updater.experts.check import check_expert
from updater.experts.look import Expert
from updater.measures import auroc
from updater.training.step import Options
from updater.training.weights import read_weights


def judged(by_maxima, by_mass):
    """A task's test: two fakes, then two reals, by both probabilities of fake."""
    return SimpleNamespace(
        families=np.array(["a/fake", "a/fake", "a/real", "a/real"]),
        labels=np.array(["fake", "fake", "real", "unknown"]),
        column=np.array([1, 1, 0, 0]),
        right=np.array([True, True, True, True]),
        fake_probability=np.array(by_mass, np.float32),
        fake_by_maxima=np.array(by_maxima, np.float32),
    )


def test_map_is_by_cddbs_probability_and_map_mass_by_that_of_a_release():
    judge = SimpleNamespace(
        setup=SimpleNamespace(options=Options()), learnt=SimpleNamespace(classes=("a/real", "a/fake"))
    )
    right, half = [0.9, 0.8, 0.2, 0.1], [0.9, 0.1, 0.5, 0.2]
    found = figures_of([judged(right, half)], judge)
    # Of the order fake, real, real, fake the precisions at the two fakes are 1 and 2/4.
    assert found.map == pytest.approx(100)
    assert found.map_mass == pytest.approx(75)
    # Seen accuracy is of all items, AA of all tasks: 4 of 4 right and 1 of 2.
    small = SimpleNamespace(**{name: of[1:3] for name, of in vars(judged(right, half)).items()})
    small.right = np.array([True, False])
    both = figures_of([judged(right, half), small], judge)
    assert (both.seen_accuracy, both.aa) == (pytest.approx(500 / 6), pytest.approx(75))
    swapped = figures_of([judged(half, right)], judge)
    assert (swapped.map, swapped.map_mass) == (pytest.approx(75), pytest.approx(100))
    assert found.reals_unknown == 0.5


def reference(points):
    """A reference set of these rows, by class, in coordinates that are those of the raw features."""
    rows = np.array([row for of in points.values() for row in of], np.float32)
    same = {"mean": np.zeros(2, np.float32), "whitening": np.eye(2, dtype=np.float32)}
    return Reference(
        **{"features": rows, "embeddings": rows, "traces": rows, "trace_whitening": same["whitening"]},
        **same | {f"embedding_{name}": value for name, value in same.items()},
        ids=tuple(map(str, range(len(rows)))),
        families=tuple(name for name, of in points.items() for _ in of),
        trace_widths=np.array([2]),
    )


KNOWN = {"a/real": [(0, 0), (0, 1)], "a/fake": [(0, 4)], "b/real": [(10, 0)]}


def test_the_score_is_how_much_nearer_an_item_is_to_the_lone_source_than_to_any_other():
    items = np.array([(10, 0), (0, 0), (10, 3), (0, 7)], np.float32)
    found = lone_source_scores(reference(KNOWN), "b", items)
    assert found == pytest.approx([10, -10, (100 + 1) ** 0.5 - 3, 3 - (100 + 49) ** 0.5], abs=1e-5)


def test_whether_an_item_is_a_fake_is_nothing_to_it():
    # The real of the lone source and a fake beside it differ from others alike.
    real, fake = lone_source_scores(reference(KNOWN), "b", np.array([(10, 0), (10, 0)], np.float32))
    assert real == fake


@pytest.mark.parametrize("known", [{"a/real": [(0, 0)]}, {"b/real": [(0, 0)], "b/fake": [(1, 0)]}])
def test_a_source_that_nothing_or_everything_is_of_is_an_error(known):
    with pytest.raises(ValueError, match="are of b"):
        lone_source_scores(reference(known), "b", np.zeros((1, 2), np.float32))


# An expert is in whatever a benchmark of a stream tells, and in the unknown score.
SIDE = 32


@pytest.fixture
def expert(tmp_path):
    nodes = [
        helper.make_node("Cast", [PICTURES], ["levels"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["levels", "colour"], ["green"]),
        helper.make_node("ReduceMean", ["green", "axes"], [LOGIT], keepdims=0),
    ]
    weights = {"colour": np.array([-0.05, 0.05, 0], np.float32), "axes": np.array([1, 2])}
    given = helper.make_tensor_value_info(PICTURES, TensorProto.UINT8, ["n", SIDE, SIDE, 3])
    told = helper.make_tensor_value_info(LOGIT, TensorProto.FLOAT, ["n"])
    kept = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "expert", [given], [told], kept)
    theirs = tmp_path / "theirs.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), theirs)
    ours = ExpertContract(name="green", input="resize", side_px=SIDE, digest="", checkpoint="", licence="MIT")
    return Expert(check_expert(theirs, ours, tmp_path / "ours.onnx"), tmp_path / "ours.onnx")


def painted(items, seed):
    """Forgeries of all families are green, and reals red; the crops know nothing of it."""
    rng = np.random.default_rng(seed)
    fake = np.array([not name.endswith("/real") for name in items.families])
    colours = np.where(fake[:, None], [60, 180, 60], [180, 60, 60])[:, None, None]
    shown = colours + rng.normal(0, 25, (len(items), SIDE, SIDE, 3))
    return replace(items, pictures=shown.clip(0, 255).astype(np.uint8))


def test_what_an_expert_knows_is_told_of_left_out_families(stream, small, whole, start, tmp_path, expert):
    tasks = [
        Task(task.name, *(painted(part, 3 * n + at) for at, part in enumerate(parts)))
        for n, task in enumerate(stream.tasks)
        for parts in [(task.train, task.calibration, task.test)]
    ]
    setup = replace(small, experts=(expert,))
    ((with_expert, _),) = start(replace(stream, tasks=tuple(tasks)), tmp_path, setup, leave=True)
    without, _ = whole
    assert with_expert.figures.within_source.auc > 0.95 > without.figures.within_source.auc
    assert with_expert.figures.aa > without.figures.aa
    assert with_expert.options["experts"] == {"green": expert.contract.digest}
    assert "experts" not in without.options


# What each step of a benchmark's run is trained on.
def test_the_budget_is_kept_and_a_shrunk_class_has_its_best(stream, tmp_path, monkeypatch, small, silent):
    kept, remember = [], Continual._remember

    def spy(self, *given):
        remember(self, *given)
        kept.append(self.memory)

    monkeypatch.setattr(Continual, "_remember", spy)
    Continual(stream, small, 0, tmp_path, silent).run()
    sizes = [{name: len(items) for name, items in memory.items()} for memory in kept]
    assert [sum(size.values()) for size in sizes] == [10, 8, 6]
    assert [size["a/real"] for size in sizes] == [5, 2, 1]
    for before, after in itertools.pairwise(kept):
        for name, items in before.items():
            assert after[name].ids == items.ids[: len(after[name])]


def test_a_network_as_it_is_has_one_accuracy_whatever_was_learnt_before(stream, tmp_path, small, start):
    setup = replace(small, learner="fine-tuning", options=Options(scheme="bc", exposure="none"))
    Continual(replace(stream, tasks=stream.tasks[:1]), setup, 0, tmp_path, lambda *_: None).run()
    setup = replace(setup, start_from=read_weights(tmp_path / "0.safetensors")).trained_epochs(0)
    ((one, _),) = start(stream, tmp_path / "as it is", setup)
    matrix = one.outcome.accuracies()
    assert all(np.unique(row[~np.isnan(row)]).size == 1 for row in matrix)
    assert one.figures.joint_aa == pytest.approx(one.figures.aa)
    # CDDB's table 11: by domain after the last step.
    assert [100 * of["acc"].value for of in one.outcome.families.values()] == pytest.approx(matrix[:, -1])


def test_no_memory_at_all_keeps_nothing(stream, tmp_path, steps, small, silent):
    Continual(stream, replace(small, memory=0), 0, tmp_path, silent).run()
    assert [len(step.train) for _, step in steps] == [12, 12, 12]


def test_joint_training_sees_every_task_and_an_update_its_own_and_exemplars(stream, tmp_path, steps, start):
    start(stream, tmp_path)
    assert [name for name, _ in steps] == ["softmax-rehearsal"] * 3 + ["joint"]
    assert [len(step.train) for _, step in steps] == [12, 22, 20, 36]
    assert steps[-1][1].classes == tuple(name for task in stream.tasks for name in task.classes)
    assert {media for _, step in steps for media in step.train.ids} == {
        media for task in stream.tasks for media in task.train.ids
    }


def test_a_family_left_out_is_never_trained_on_nor_are_its_kinds(stream, tmp_path, steps, kinds, start):
    start(stream, tmp_path, leave=True)
    after = steps[4:]
    assert len(after) == 9  # each family once whole, once for the plain energy, once with its reals known
    for number, family in enumerate(["a", "a", "b", "b", "c", "c"]):
        step = after[number][1]
        assert not any(name.startswith(f"{family}/") for name in step.train.families + step.classes)
        assert step.without == kinds.get(family, frozenset())
        assert len(step.train) == 24
    for (_, step), family in zip(after[6:], "abc", strict=True):
        own = {name for name in step.train.families if name.startswith(f"{family}/")}
        assert (own, step.without) == ({f"{family}/real"}, kinds.get(family, frozenset()))


def test_one_task_alone_cannot_be_left_out(stream, tmp_path, start):
    with pytest.raises(ValueError, match="one task cannot be left out"):
        start(replace(stream, tasks=stream.tasks[:1]), tmp_path, leave=True)


# What a benchmark's run measures: its matrix, its figures, and what is rejected.
def test_the_matrix_is_square_and_empty_where_a_task_is_not_yet_learnt(whole):
    matrix = whole[0].outcome.accuracies()
    assert matrix.shape == (3, 3)
    assert np.array_equal(np.isnan(matrix), np.tril(np.ones((3, 3), bool), -1))
    assert 0 <= np.nanmin(matrix) <= np.nanmax(matrix) <= 100
    assert whole[0].figures.aa == pytest.approx(matrix[:, 2].mean())
    # The average incremental accuracy: tasks have as many test items, so that a step's is its column's mean.
    steps = (matrix[0, 0], matrix[:2, 1].mean(), matrix[:, 2].mean())
    assert whole[0].figures.incremental_accuracy == pytest.approx(sum(steps) / 3)
    assert whole[0].figures.update_cost > 0


def test_families_left_out_give_figures_for_both_settings_and_scores_of_each(whole):
    one, scores = whole
    assert all(value is not None for value in one.figures.unseen.model_dump().values())
    assert one.figures.source_known.auc is not None
    assert one.figures.source_known.energy_auc is None
    assert one.figures.lone_source_auc is not None
    assert set(scores) == {"without a", "without b", "without c"}
    # Every forgery of the family, not only those for testing.
    assert [len(getattr(scores["without a"], of)) for of in ("unknown", "control", "known")] == [15, 15, 20]


def test_figures_on_images_drawn_anew_lie_around_those_on_all_of_them(whole):
    one = whole[0]
    drawn = {name: value.drawn for name, value in one.outcome.figures.items() if value.drawn}
    assert set(drawn) == {"aa", "real_fake_auc", "power.share", "within_source.own_energy_auc"} | {
        f"{part}.{name}"
        for part in ("unseen", "source_known", "within_source")
        for name in ("auc", "caught_at_5")
    }
    for name, draws in drawn.items():
        assert len(draws) == 1000
        # Means of the same items in another order differ in the last digit.
        lowest, highest = np.nanmin(draws) - 1e-9, np.nanmax(draws) + 1e-9
        assert lowest <= one.outcome.figures[name].value <= highest, name


def test_families_left_out_give_the_figures_within_their_source_and_the_power(whole):
    one, _ = whole
    assert one.figures.within_source.auc is not None
    assert one.outcome.rejection_within_source["fused"] == values(one.figures.within_source)
    assert 0 <= one.figures.power.low <= one.figures.power.share <= one.figures.power.high <= 1


def test_each_family_has_its_own_figures_within_its_source_whose_mean_is_the_runs(whole):
    one, _ = whole
    families = one.outcome.families
    assert set(families) == {"a", "b", "c"}
    for name in ("within_source.auc", "within_source.caught_at_5", "power.share"):
        each = [figures[name] for figures in families.values()]
        assert np.mean([figure.value for figure in each]) == pytest.approx(one.outcome.figures[name].value)
        assert {figure.n for figure in each} == {15}
        assert all(len(figure.drawn) == 1000 for figure in each)


def test_each_score_is_drawn_with_its_own_image():
    def items(families, scores):
        arrays = dict.fromkeys(JudgedItems.__dataclass_fields__, np.zeros(len(families)))
        groups = np.array([f"{name} {score}" for name, score in zip(families, scores, strict=True)])
        own = {"msp": np.array(scores, np.float32)}
        return JudgedItems(**arrays | {"families": np.array(families), "groups": groups, "rejection": own})

    known, unseen = items(["a/real"] * 3, [1, 5, 3]), items(["b/fake", "b/real", "b/fake"], [4, 9, 2])
    images = Resamples([*known.groups, *unseen.groups], ["known"] * 3 + ["unseen"] * 3)
    for number, area in enumerate(rejection_draws("unseen", known, unseen, "msp", images)["unseen.auc"][:50]):
        high, low = (
            np.repeat(of.rejection["msp"], images.of(of.groups.tolist())[number])
            for of in (unseen.take(np.array([True, False, True])), known)
        )
        assert area == pytest.approx(auroc(high, low), nan_ok=True)


def test_outliers_that_grow_and_become_tasks_are_rejected_at_each_step(stream, labelled, tmp_path, start):
    grown = OutlierSet("other", labelled({"other/posterised": 6, "other/real": 3}, seed=90))
    later = [OutlierSet(t.name, t.test, until_step=n) for n, t in enumerate(stream.tasks) if n]
    ((one, scores),) = start(replace(stream, outliers=(grown, *later)), tmp_path)
    assert set(scores) == {"step 1", "step 2", "step 3"}
    assert [len(scores[f"step {n}"].unknown) for n in (1, 2, 3)] == [3 + 5 + 5, 6 + 5, 6]
    assert [len(scores[f"step {n}"].control) for n in (1, 2, 3)] == [5 + 5, 5, 3]
    aucs = [step.figures.unseen.auc for step in one.outcome.steps]
    assert one.figures.unseen.auc == pytest.approx(np.mean(aucs))
    assert one.figures.unseen.caught_deployed is not None


def test_classes_none_of_which_is_real_are_counted_by_the_very_class(classes, tmp_path, small, start):
    ((one, _),) = start(classes, tmp_path, replace(small, rejection=("energy", "fused")))
    assert one.figures.aa == pytest.approx(one.figures.closed_set_accuracy)
    assert one.figures.unseen.auc is not None
    assert one.figures.reals_unknown is None
    assert one.figures.map is None


def test_two_sides_need_a_class_of_real_media(classes, tmp_path, small, start):
    with pytest.raises(ValueError, match="bc needs a class of real media"):
        start(classes, tmp_path, replace(small, options=Options(scheme="bc")))


def test_a_score_of_crops_and_one_with_its_head_stand_beside_post_hoc_ones(
    stream, tmp_path, small, start, monkeypatch
):
    fitted_on, fit = [], POST_HOC["relation"]
    monkeypatch.setitem(
        POST_HOC, "relation-published", lambda known: fitted_on.append(len(known.targets)) or fit(known)
    )
    names = ("ber", "odin-published", "augmix", "fused", "energy", "relation", "relation-published")
    two = replace(stream, tasks=stream.tasks[:2])
    later = OutlierSet("c", stream.tasks[2].test)
    ((one, scores),) = start(replace(two, outliers=(later,)), tmp_path, replace(small, rejection=names))
    assert one.figures.unseen.auc is not None
    assert one.figures.unseen.caught_deployed is None  # the deployed threshold is the gate's
    ((plain, gate),) = start(replace(two, outliers=(later,)), tmp_path / "gate")
    assert plain.outcome.matrix == one.outcome.matrix
    assert not np.array_equal(scores["step 2"].unknown, gate["step 2"].unknown)
    # As in OpenCIL's code: what is held back of the newest task, four of each class, and the memory after it.
    kept = [len(classes) * min(small.memory // len(classes), 6) for classes in (range(2), range(4))]
    assert fitted_on == [8 + count for count in kept]

"""What a benchmark's run measures: its matrix, its figures, and what is rejected."""

from dataclasses import replace

import numpy as np
import pytest
from makers import values

from updater.benchmark.continual import continual, left_out, resampled, scoring
from updater.benchmark.continual.continual import rejection_scores
from updater.benchmark.data.tasks import OutlierSet
from updater.candidate.calibrate import reals
from updater.training.step import Options


def test_the_matrix_is_square_and_empty_where_a_task_is_not_yet_learnt(whole):
    matrix = whole[0].outcome.accuracies()
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
    assert one.figures.lone_source_auc is not None
    assert set(scores) == {"without a", "without b", "without c"}
    assert len(scores["without a"].unknown) == 15  # every forgery of the family, not only those for testing
    assert len(scores["without a"].control) == 15
    assert len(scores["without a"].known) == 20


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


def test_each_score_is_drawn_with_its_own_image(stream, classes, tmp_path, monkeypatch, start):
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
    assert one.outcome.figures["source_known.auc"].drawn
    del scored[:], drawn[:]
    start(classes, tmp_path / "outliers")
    # All sets pooled, and then the one set that there is.
    assert len(scored) == 4
    assert scored[::2] == scored[1::2]
    assert drawn == scored[::2]


def test_outliers_that_grow_and_that_become_tasks_are_rejected_at_each_step(
    stream, labelled, tmp_path, start
):
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
    setup = replace(small, rejection=("energy", "fused"))
    ((one, _),) = start(classes, tmp_path, setup)
    assert one.figures.aa == pytest.approx(one.figures.closed_set_accuracy)
    assert one.figures.unseen.auc is not None
    assert one.figures.reals_unknown is None
    assert one.figures.map is None


def test_two_sides_need_a_class_of_real_media(classes, tmp_path, small, start):
    with pytest.raises(ValueError, match="bc needs a class of real media"):
        start(classes, tmp_path, replace(small, options=Options(scheme="bc")))


def test_a_score_of_crops_and_one_with_a_head_of_its_own_stand_beside_the_post_hoc_ones(
    stream, tmp_path, small, start
):
    names = ("ber", "odin-published", "augmix", "fused", "energy")
    assert set(names) < set(scoring.scores_offered())
    two = replace(stream, tasks=stream.tasks[:2])
    later = OutlierSet("c", stream.tasks[2].test)
    setup = replace(small, rejection=names)
    ((one, scores),) = start(replace(two, outliers=(later,)), tmp_path, setup)
    assert one.figures.unseen.auc is not None
    assert one.figures.unseen.caught_deployed is None  # the deployed threshold is the gate's
    ((plain, gate),) = start(replace(two, outliers=(later,)), tmp_path / "gate")
    assert plain.outcome.matrix == one.outcome.matrix
    assert not np.array_equal(scores["step 2"].unknown, gate["step 2"].unknown)

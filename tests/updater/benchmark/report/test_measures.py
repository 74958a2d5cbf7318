"""The measures of the papers' tables against figures worked out by hand, and scikit-learn's."""

import io
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text
from scipy.stats import bootstrap
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from updater.benchmark.report.bootstrap import Resamples, aurocs, caught_shares, interval, shares
from updater.benchmark.report.results import aa_m, af, af_paper, average_precision, caught_at, fpr95, mean_ap
from updater.measures import auroc
from updater.terminal import cut, print_grid, wrap_text

B = [[90, 80, 70, 60], [0, 95, 85, 80], [0, 0, 99, 90], [0, 0, 0, 92]]
SCORES = st.lists(st.integers(-4, 4), min_size=1, max_size=30)


def test_forgetting_as_the_published_code_counts_it():
    assert af(B) == pytest.approx((-30 - 15 - 9) / 3)


def test_forgetting_as_the_paper_prints_it_leaves_out_the_division_by_zero():
    first = ((80 - 90) + (70 - 90) + (60 - 90)) / 2
    second = ((85 - 95) + (80 - 95)) / 1
    assert af_paper(B) == pytest.approx((first + second) / 2)


def test_too_few_tasks_to_forget_is_not_a_number():
    assert math.isnan(af([[90]]))
    assert math.isnan(af_paper([[90, 80], [0, 95]]))


def test_a_matrix_that_is_not_square_is_refused():
    with pytest.raises(ValueError, match="square"):
        af([[1, 2, 3], [4, 5, 6]])


@given(SCORES, SCORES)
def test_fpr95_is_the_point_of_scikit_learns_curve(positive, negative):
    truth = [1] * len(positive) + [0] * len(negative)
    false, true, _ = roc_curve(truth, positive + negative, drop_intermediate=False)
    assert fpr95(positive, negative) == pytest.approx(false[np.argmax(true >= 0.95)])


def test_fpr95_depends_on_which_class_is_positive():
    unknown, known = [5, 4, 3, 0], [4, 2, 1, 1]
    assert fpr95(unknown, known) == 1.0
    assert fpr95([-k for k in known], [-u for u in unknown]) == 0.75


@given(SCORES, SCORES)
def test_average_precision_agrees_with_scikit_learn_ties_and_all(positive, negative):
    truth = [1] * len(positive) + [0] * len(negative)
    expected = average_precision_score(truth, positive + negative)
    assert average_precision(positive, negative) == pytest.approx(expected)


@given(SCORES, SCORES, st.sampled_from([0.05, 0.1, 0.5]))
def test_caught_is_the_best_point_of_scikit_learns_curve_within_the_false_share(unknown, known, share):
    truth = [1] * len(unknown) + [0] * len(known)
    false, true, _ = roc_curve(truth, unknown + known, drop_intermediate=False)
    assert caught_at(unknown, known, share) == pytest.approx(true[false <= share + 1e-9].max())


def test_one_known_in_twenty_may_be_turned_away():
    known = list(range(20))
    assert caught_at([18.5, 17.5], known) == 0.5
    assert caught_at([18.5, 17.5], known[1:]) == 0.0


@pytest.mark.parametrize("measure", [fpr95, average_precision, caught_at])
def test_nothing_to_compare_is_not_a_number(measure):
    assert math.isnan(measure([], [1.0]))
    assert math.isnan(measure([1.0], []))


def test_aa_m_counts_only_the_very_class():
    # Two of four and three of three: a fake called another source's fake is wrong.
    assert aa_m([[1, 1, 3, 0], [2, 2, 2]], [[1, 1, 1, 2], [2, 2, 2]]) == pytest.approx(75)
    assert aa_m([["a/fake"]], [["b/fake"]]) == 0
    assert math.isnan(aa_m([[]], [[]]))


def test_map_is_the_mean_over_tasks_whatever_their_sizes():
    assert mean_ap([[2.0, 3.0], [0.0] * 9], [[1.0, 0.0], [1.0]]) == pytest.approx(100 * (1 + 0.9) / 2)
    assert math.isnan(mean_ap([[1.0]], [[]]))


def samples(count=60):
    rng = np.random.default_rng(3)
    return rng.normal(1, 1, count), rng.normal(0, 1, 2 * count)


def drawn_of_both(first, second):
    strata = ["first"] * len(first) + ["second"] * len(second)
    groups = [str(number) for number in range(len(strata))]
    drawn = Resamples(groups, strata)
    return drawn.of(groups[: len(first)]), drawn.of(groups[len(first) :])


def test_the_interval_agrees_with_scipys_percentile_bootstrap_of_scikit_learns_area():
    def area(first, second):
        return float(roc_auc_score([1] * len(first) + [0] * len(second), np.concatenate([first, second])))

    expected = bootstrap(
        samples(), area, vectorized=False, method="percentile", n_resamples=1500, rng=np.random.default_rng(5)
    ).confidence_interval
    found = interval(aurocs(*samples(), *drawn_of_both(*samples())))
    assert found == pytest.approx(tuple(expected), abs=0.015)


def test_the_interval_of_a_share_is_the_normal_one():
    right = samples(400)[0] > 0.5
    found = interval(shares(right, drawn_of_both(right, right)[0]), 0.9)
    error = math.sqrt(right.mean() * (1 - right.mean()) / len(right))
    assert found == pytest.approx(
        (right.mean() - 1.645 * error, right.mean() + 1.645 * error), abs=0.15 * error
    )


scores = st.lists(st.integers(0, 6), min_size=1, max_size=9)


@given(scores, scores, st.integers(0, 99))
def test_a_draw_has_the_figure_of_its_images_each_as_often_as_it_is_drawn(unknown, known, seed):
    rng = np.random.default_rng(seed)
    of_unknown, of_known = (rng.integers(0, 4, (5, len(one))).astype(np.uint16) for one in (unknown, known))
    areas = aurocs(unknown, known, of_unknown, of_known)
    caught = caught_shares(unknown, known, of_unknown, of_known)
    for number in range(5):
        pair = np.repeat(unknown, of_unknown[number]), np.repeat(known, of_known[number])
        assert areas[number] == pytest.approx(auroc(*pair), nan_ok=True)
        assert caught[number] == pytest.approx(caught_at(*pair), nan_ok=True)


def test_each_stratum_keeps_its_number_and_a_group_is_drawn_as_one():
    groups = ["a", "a", "b", "c", "d", "d", "e", "f"]
    strata = ["x", "x", "x", "x", "y", "y", "y", "y"]
    drawn = Resamples(groups, strata, rounds=200).of(groups)
    assert np.array_equal(drawn[:, 0], drawn[:, 1])
    assert np.array_equal(drawn[:, 4], drawn[:, 5])
    assert set(drawn[:, [0, 2, 3]].sum(1)) == set(drawn[:, [4, 6, 7]].sum(1)) == {3}
    assert len(np.unique(drawn, axis=0)) > 50


def test_the_same_images_are_drawn_each_time_and_another_seed_draws_others():
    groups = [str(number) for number in range(20)]
    first, again, other = (Resamples(groups, groups[:1] * 20, seed=seed).of(groups) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_draws_without_a_value_are_left_out_and_nothing_has_no_interval():
    assert interval([math.nan, 1.0, 1.0]) == (1, 1)
    assert interval([math.nan]) is None
    nothing = np.zeros((3, 0), np.uint16)
    one = np.ones((3, 1), np.uint16)
    assert np.isnan(aurocs([], [1.0], nothing, one)).all()
    assert np.isnan(caught_shares([], [1.0], nothing, one)).all()
    assert np.isnan(caught_shares([1.0], [], one, nothing)).all()


# Tables on terminals of several widths, and in a pipe.
HEAD = ("release", "state", "since", "by", "classes", "share", "reason")
ROWS = [
    (
        "a1b2c3d4e5f6",
        "proposed",
        "2026-11-21 22:13:01",
        "an-operator-with-a-very-long-login-name@example.org",
        "real, blended-with-a-remarkably-long-family-name, upsampled",
        "123456.789",
        "it forgets nothing, and the operator has looked at every one of its contact sheets",
    ),
    ("0f0f0f0f0f0f", "live", "2026-11-20 02:03:04", "bob", "real, fake", "0.125", "-"),
]


def shown(width, head=HEAD, rows=ROWS, *, terminal=True):
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    print_grid(console, "releases", head, rows)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_table_fits_and_breaks_no_word_and_cuts_no_number(width):
    out = shown(width)
    assert max(map(len, out.splitlines())) <= width
    for number in ("123456.789", "0.125", "22:13:01", "02:03:04", "2026-11-21"):
        assert number in out
    words = set(" ".join(" ".join(row) for row in (HEAD, *ROWS)).split())
    for word in out.replace("releases", "", 1).replace("─", " ").split():
        if word in words:
            continue
        begin, _, end = word.partition("…")
        assert any(whole.startswith(begin) and whole.endswith(end) for whole in words), word
        assert "…" in word


def test_names_by_which_things_are_named_stay_whole_in_the_first_column():
    for width in (60, 80):
        assert "a1b2c3d4e5f6" in shown(width)


def test_a_pipe_gets_every_name_whole_on_one_line_a_row():
    out = shown(80, terminal=False)
    for row in ROWS:
        assert any(all(cell in line for cell in row) for line in out.splitlines())
    assert "…" not in out


def test_more_numbers_than_a_terminal_is_wide_come_in_parts_that_each_begin_with_the_name():
    head = ("accuracy on", *map(str, range(1, 21)))
    rows = [(f"{n} a-task-with-a-long-name", *["100.0"] * 20) for n in range(1, 21)]
    for width in (60, 80):
        out = shown(width, head, rows)
        assert max(map(len, out.splitlines())) <= width
        assert out.count("100.0") == 400
        assert len(re.findall("^accuracy", out, re.MULTILINE)) > 1
    assert out.count("releases") == 1


def test_cells_keep_their_style_and_are_no_markup():
    console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system="standard")
    print_grid(console, "", ("", ""), [(Text("holds", "green"), "[red]x[/red]")])
    assert isinstance(console.file, io.StringIO)
    out = console.file.getvalue()
    assert "\x1b[32mholds" in out
    assert "[red]x[/red]" in out


@given(st.text(st.characters(categories=["L", "N"]), max_size=60), st.integers(3, 30))
def test_a_name_is_cut_in_the_middle_to_its_width_and_a_number_never(name, width):
    short = cut(name, width)
    if name.isdecimal() or Text(name).cell_len <= width:
        assert short == name
    else:
        assert Text(short).cell_len <= width
        begin, _, end = short.partition("…")
        assert name.startswith(begin)
        assert name.endswith(end)


@given(st.lists(st.from_regex(r"[a-z]{1,9}", fullmatch=True), max_size=20), st.integers(9, 40))
def test_what_is_wrapped_keeps_every_word(words, width):
    out = wrap_text(" ".join(words), width)
    assert out.split() == words
    assert all(len(line) <= width for line in out.split("\n"))

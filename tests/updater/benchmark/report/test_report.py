"""Runs are kept and read whole, summed up over seeds, and shown with everything escaped."""

import base64
import json
import math
import re
import statistics
from html.parser import HTMLParser

import numpy as np
import pytest
from makers import make_run, values
from pydantic import ValidationError
from rich.console import Console
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from updater.benchmark.report import plots
from updater.benchmark.report.outcome import Figure, Value
from updater.benchmark.report.report import report_json, report_markdown, report_page, show, write_reports
from updater.benchmark.report.results import Figures, RejectionScores, Unseen, measure_unseen
from updater.benchmark.report.run_folder import (
    ResultsError,
    load_run,
    load_runs,
    load_scores,
    save_run,
    save_scores,
)
from updater.benchmark.report.table import compare

HOSTILE = "<script>alert(1)</script>[red]|`$\\frac$"


def scores(seed, knowns=60, unknowns=40):
    rng = np.random.default_rng(seed)
    means = (0, 1.5, 0.8, -3, -2.8, -3, -2.5, -2)
    counts = (knowns, unknowns, 20, knowns, unknowns, knowns, unknowns, 20)
    drawn = (rng.normal(mean, 1, n) for mean, n in zip(means, counts, strict=True))
    return RejectionScores(*(part.astype(np.float32) for part in drawn))


def run(seed, aa=80.0, **changes):
    matrix = ((95.0, 90.0, aa), (None, 92.0, aa + 2), (None, None, aa + 4))
    figures = Figures(aa=aa, joint_aa=91, af=aa - 93.5, unseen=measure_unseen(scores(seed), 1.0))
    tasks, options = ("gaugan", "biggan", "san"), {"learner": "icarl", "memory": 500}
    of = {"tasks": tasks, "matrix": matrix, "options": options}
    return make_run(seed, changes.pop("figures", figures), **(of | changes))


def summary(runs):
    """What a report says of a stream's figures, by their names."""
    return json.loads(report_json(runs))["figures"]


def test_the_summary_is_the_mean_and_the_sample_deviation_over_seeds():
    runs = [run(0, 80), run(1, 84), run(2, 91)]
    told = summary(runs)
    assert told["aa"] == {"mean": 85, "sd": pytest.approx(statistics.stdev([80, 84, 91])), "n": None}
    assert told["joint_aa"]["sd"] == 0
    assert told["unseen.auc"]["mean"] == pytest.approx(np.mean([r.figures.unseen.auc for r in runs]))
    assert told["aa_m"] == {"mean": None, "sd": None, "n": None}  # null, and no NaN, which JSON does not have


def test_a_figure_that_one_seed_lacks_is_the_mean_of_the_others():
    lacking = run(0, figures=Figures(aa=math.nan))
    assert summary([lacking, run(1, 70), run(2, 90)])["aa"]["mean"] == 80
    assert summary([lacking, run(1, 70)])["aa"] == {"mean": 70, "sd": None, "n": None}


def test_the_figures_of_rejection_are_scikit_learns_with_the_positive_class_that_they_name():
    one = scores(3)
    found = measure_unseen(one, threshold=1.0)
    truth, values = np.r_[np.ones(40), np.zeros(60)], np.r_[one.unknown, one.known]
    assert found.auc == pytest.approx(roc_auc_score(truth, values))
    assert found.ap == pytest.approx(average_precision_score(truth, values))
    false, true, _ = roc_curve(1 - truth, -values, drop_intermediate=False)
    assert found.fpr95 == pytest.approx(false[np.argmax(true >= 0.95)])
    assert found.caught_deployed == np.mean(one.unknown > 1.0)
    energy = roc_auc_score(truth, np.r_[one.unknown_energy, one.known_energy])
    assert found.energy_auc == pytest.approx(energy)
    assert measure_unseen(one).caught_deployed is None
    own = roc_auc_score(truth, np.r_[one.unknown_own_energy, one.known_own_energy])
    assert found.own_energy_auc == pytest.approx(own)


def test_the_report_says_how_to_repeat_its_runs():
    told = json.loads(report_json([run(0), run(1)]))
    assert told["seeds"] == [0, 1]
    assert told["options"] == {"learner": "icarl", "memory": 500}
    assert {"benchmark", "command", "versions", "device", "data", "data_digest"} <= told.keys()
    assert told["each"][1]["matrix"][0] == [95.0, 90.0, 80.0]


def test_the_report_has_every_score_of_each_seed_in_both_settings():
    some, other = (measure_unseen(scores(seed)) for seed in (0, 1))
    compared = {"rejection": {"msp": values(some)}, "rejection_source_known": {"msp": values(other)}}
    (each,) = json.loads(report_json([run(0, **compared)]))["each"]
    assert each["rejection"]["msp"]["auc"] == some.auc
    assert each["rejection_source_known"]["msp"]["auc"] == other.auc


def drawn(seed, aa):
    """A run with its figures drawn anew: AA evenly over aa ± 10, and an AUC that one draw lacks."""
    aucs = (math.nan, *np.linspace(0.7, 0.9, 1000))
    return run(seed, aa, drawn={"aa": tuple(np.linspace(aa - 10, aa + 10, 1001)), "unseen.auc": aucs})


def test_the_interval_is_of_the_mean_over_the_seeds_on_the_same_images():
    told = summary([drawn(0, 80), drawn(1, 90)])
    assert told["aa"]["interval"] == pytest.approx([75.5, 94.5])
    assert told["unseen.auc"]["interval"] == pytest.approx([0.705, 0.895])
    assert "interval" not in told["af"]
    # Draws that go against each other make the mean steadier than each seed is.
    steady = drawn(0, 80)
    turned = run(1, 80, drawn={"aa": steady.outcome.figures["aa"].drawn[::-1]})
    assert summary([steady, turned])["aa"]["interval"] == pytest.approx([80, 80])


def test_a_figure_that_one_seed_did_not_draw_anew_has_no_interval():
    assert "interval" not in summary([drawn(0, 80), run(1, 90)])["aa"]


def test_every_table_shows_the_intervals_and_says_what_they_are(tmp_path):
    runs = [drawn(0, 80), drawn(1, 84)]
    for one in runs:
        save_run(tmp_path / "a" / f"seed-{one.seed}", one)
        save_run(tmp_path / "b" / f"seed-{one.seed}", run(one.seed))
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    show(console, runs)
    compare([tmp_path / "a", tmp_path / "b"]).show(console)
    console.file.close()
    terminal = console.export_text()
    assert terminal.count("82.00 ± 2.83 [72.50, 91.50]") == 2
    assert terminal.count("in brackets 95 % over images") == 2
    for text in (report_markdown(runs), report_page(runs, [{}, {}])):
        assert "82.00 ± 2.83 [72.50, 91.50]" in text
        assert "in brackets 95 % over images" in text
    assert summary(runs)["aa"]["interval"] == pytest.approx([72.5, 91.5])
    assert "brackets" not in report_markdown([run(0)])


def test_a_run_is_read_as_it_was_saved(tmp_path):
    kept = {"step-2": scores(0), "step-3": scores(1)}
    save_run(tmp_path / "seed-0", run(0, drawn={"aa": (80.0, 81.5)}))
    save_scores(tmp_path / "seed-0", kept)
    assert load_run(tmp_path / "seed-0") == run(0, drawn={"aa": (80.0, 81.5)})
    assert "81.5" not in (tmp_path / "seed-0/run.json").read_text()
    read = load_scores(tmp_path / "seed-0")
    assert read.keys() == kept.keys()
    for name, one in kept.items():
        for field, array in vars(one).items():
            assert np.array_equal(getattr(read[name], field), array)


def test_a_folder_of_runs_is_read_by_seed_and_a_broken_one_is_one_line(tmp_path):
    for seed in (10, 2):
        save_run(tmp_path / f"seed-{seed}", run(seed))
    assert [one.seed for one in load_runs(tmp_path)] == [2, 10]
    (tmp_path / "seed-2/run.json").write_text('{"format": 1}')
    with pytest.raises(ResultsError) as error:
        load_runs(tmp_path)
    assert "seed-2/run.json" in str(error.value)
    assert "\n" not in str(error.value)
    (tmp_path / "seed-10/resampled.safetensors").write_bytes(b"half")
    with pytest.raises(ResultsError, match=r"seed-10/resampled.safetensors cannot be read"):
        load_run(tmp_path / "seed-10")
    with pytest.raises(ResultsError, match="name the folder of a benchmark"):
        load_runs(tmp_path / "elsewhere")


def test_a_matrix_that_does_not_fit_the_tasks_is_refused():
    with pytest.raises(ValidationError, match="4 tasks need a matrix"):
        run(0, tasks=("a", "b", "c", "d"))


def test_aa_over_time_is_over_the_tasks_learnt_so_far():
    assert run(0).outcome.aa_over_time() == pytest.approx([95, 91, 82])


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.seen = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))


def test_the_page_stands_alone_and_escapes_everything():
    hostile = run(0, tasks=(HOSTILE, "b", "c"), options={HOSTILE: HOSTILE})
    page = report_page([hostile, run(1, tasks=(HOSTILE, "b", "c"))], [{"end": scores(0)}, {"end": scores(1)}])
    tags = Tags(page).seen
    assert "script" not in {tag for tag, _ in tags}
    pictures = [attributes["src"] for tag, attributes in tags if tag == "img"]
    assert len(pictures) == 4
    for picture in pictures:
        form, _, data = picture.partition(",")
        assert form == "data:image/svg+xml;base64"
        svg = base64.b64decode(data).decode()
        assert "<script" not in svg
        # Only the ids within, and the colour bar's own pixels: nothing is fetched.
        assert not re.findall(
            r'(?:href|src)="(?!#|data:image/png)[^"]*"|url\((?!#)[^)]*\)|@import|font-family', svg
        )
    assert not [a for _, a in tags if (a.get("href") or a.get("src") or "data:").partition(":")[0] != "data"]
    assert HOSTILE.split("[")[0] not in page


def test_a_page_without_rejection_has_no_curve_of_it():
    assert [tag for tag, _ in Tags(report_page([run(0)], [{}])).seen].count("img") == 2


def test_one_task_and_scores_that_are_all_alike_can_be_shown():
    alone = run(0, tasks=("a",), matrix=((90.0,),))
    same = np.ones(5, np.float32)
    page = report_page([alone], [{"x": RejectionScores(same, same, same[:0], same, same)}])
    assert [tag for tag, _ in Tags(page).seen].count("img") == 4


def test_pictures_name_the_first_score_by_its_own_name():
    compared = {name: values(measure_unseen(scores(0))) for name in ("react", "energy")}
    assert "Energy and react of known" in report_page([run(0, rejection=compared)], [{"x": scores(0)}])


@pytest.fixture
def drawn_lines(monkeypatch):
    """Draws, and gives the label and the points of each line."""
    monkeypatch.setattr(plots, "svg", lambda figure: figure)

    def drawn_lines(figure):
        return {line.get_label(): np.round(line.get_xydata(), 6).tolist() for line in figure.axes[0].lines}

    return drawn_lines


def test_a_polygon_a_method_has_the_accuracy_of_each_domain(drawn_lines):
    def accuracies(*shares):
        return {f"${n}": {"acc": Figure(mean=share, sd=None, n=4)} for n, share in enumerate(shares)}

    turned = [0, round(2 * math.pi / 3, 6), round(4 * math.pi / 3, 6), 0]
    lines = drawn_lines(plots.radar({"ours": accuracies(0.5, 0.75, 1.0), "$_theirs": accuracies(0.25, 0.5)}))
    assert lines["ours"] == [list(at) for at in zip(turned, (0.5, 0.75, 1.0, 0.5), strict=True)]
    assert [r for _, r in lines["$_theirs"]] == [0.25, 0.5, pytest.approx(math.nan, nan_ok=True), 0.25]


def test_precision_falls_with_each_real_above_a_fake(drawn_lines):
    fake, score = np.array([True, False, True, False]), np.array([0.9, 0.8, 0.7, 0.1], np.float32)
    lines = drawn_lines(plots.precision_recall({"gan": (fake, score)}))
    # At the thresholds .1, .7, .8 and .9, and above all of them.
    assert lines == {"gan, AP 0.833": [[1, 0.5], [1, 0.666667], [0.5, 0.5], [0.5, 1], [0, 1]]}


def test_the_page_has_the_polygons_of_runs_beside_it(tmp_path):
    families = {name: {"acc": Value(value=0.5, n=4)} for name in ("gaugan", "biggan", "san")}
    save_run(tmp_path / "other/seed-0", run(0, families=families))
    write_reports(tmp_path / "own", [run(1, families=families)], others=[tmp_path / "other"])
    assert "Accuracy on each domain" in (tmp_path / "own/report.html").read_text()


def test_pictures_are_the_same_text_each_time():
    assert report_page([run(0)], [{"x": scores(0)}]) == report_page([run(0)], [{"x": scores(0)}])


def test_markdown_and_terminal_show_the_same_figures_and_no_markup():
    runs = [run(0, 80, tasks=(HOSTILE, "b", "c")), run(1, 84, tasks=(HOSTILE, "b", "c"))]
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    show(console, runs)
    console.file.close()
    terminal, markdown = console.export_text(), report_markdown(runs)
    for text in (terminal, markdown):
        assert "82.00 ± 2.83" in text
        assert "AF (paper)" not in text  # none has it
    assert "[red]" in terminal
    table = [line for line in markdown.splitlines() if line.startswith("| 1 &lt;script")]
    assert table
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 5 for line in table)


def test_runs_side_by_side_tell_the_options_in_which_they_differ(tmp_path):
    for name, memory, aas in (("small", 100, (70, 72)), ("large", 500, (80, 84))):
        for seed, aa in enumerate(aas):
            options = {"learner": "icarl", "memory": memory}
            save_run(tmp_path / name / f"seed-{seed}", run(seed, aa, options=options))
    grid = compare([tmp_path / "small", tmp_path / "large"])
    assert grid.head == ("figure", "small", "large")
    assert grid.rows[:2] == (("memory", "100", "500"), ("AA", "71.00 ± 1.41", "82.00 ± 2.83"))
    assert grid.rows[-1] == ("seeds", "2", "2")
    assert compare([tmp_path / "small", tmp_path / "small"]).rows[0][0] == "AA"


def test_reports_lie_in_the_folder_and_where_they_were_asked_for(tmp_path):
    write_reports(tmp_path / "out", [run(0)], tmp_path / "deep" / "figures.json")
    names = {f"report.{form}" for form in ("html", "json", "md")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert (tmp_path / "deep/figures.json").read_bytes() == (tmp_path / "out/report.json").read_bytes()


def test_unseen_figures_without_a_value_are_none():
    empty = np.zeros(0, np.float32)
    none = RejectionScores(scores(0).known, empty, empty, scores(0).known_energy, empty)
    assert measure_unseen(none, 1.0) == Unseen()

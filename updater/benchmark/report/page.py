"""A report as one HTML page that stands alone: no script, no font and no file from elsewhere."""

import base64
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence

from jinja2 import Environment

from updater.benchmark.report import plots
from updater.benchmark.report.outcome import nested_over_seeds, table_over_seeds
from updater.benchmark.report.results import RejectionScores
from updater.benchmark.report.run_folder import Run
from updater.benchmark.report.table import grids

Scores = Sequence[Mapping[str, RejectionScores]]
"""of each run, its scores of rejection by name"""

_LEAD_OF_STREAMS = (
    "Points are of 100, shares and AUCs of 1. Positive is the unknown in AUC and AP, the known in FPR95."
    " What rejection is worth is told within a source: elsewhere a new source passes for a new forgery."
)
_LEAD_OF_NEWCOMERS = (
    "Shares and AUCs are of 1: before and after half of the new sources' reals were named. The others are the"
    " other half, known fakes and own reals are of the own stream, auc is the unknown score's, and energy_auc"
    " the energy's alone."
)
_LEAD = (
    "Shares and AUCs are of 1. acc is a mean over classes; map_ovr is what the paper calls mAP, a mean of"
    " AUCs; agree is its IoU; each family's figures are of its forgeries beside all reals."
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #1a202c;
 max-width: 66rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
p { margin: .3rem 0 } code { overflow-wrap: anywhere }
.lead { color: #4a5568 }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
caption { text-align: left; color: #4a5568; padding-bottom: .3rem }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #e2e8f0; white-space: nowrap }
th:first-child, td:first-child { text-align: left; padding-left: 0 }
.pictures { display: flex; flex-wrap: wrap; gap: 1.5rem; align-items: flex-start }
figure { margin: 0; max-width: 100% } figcaption { color: #4a5568; max-width: 40rem }
img { max-width: 100%; height: auto }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0 }
dt { color: #4a5568 } dd { margin: 0; overflow-wrap: anywhere }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p class="lead">{{ lead }}</p>
{% for grid in grids %}
<h2>{{ grid.title }}</h2>
<div class="wide"><table>
<thead><tr>{% for cell in grid.head %}<th scope="col">{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in grid.rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
</table></div>
{% endfor %}
{% if pictures %}
<h2>Pictures</h2>
<div class="pictures">
{% for address, caption in pictures %}
<figure><img src="{{ address }}" alt="{{ caption }}">
<figcaption>{{ caption }}</figcaption></figure>
{% endfor %}
</div>
{% endif %}
{% if facts %}
<h2>To repeat it</h2>
<dl>
{% for name, value in facts.items() %}
<dt>{{ name }}</dt><dd><code>{{ value }}</code></dd>
{% endfor %}
</dl>
{% endif %}
</body>
</html>
"""
_TEMPLATE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(_PAGE)


def report_page(runs: Sequence[Run], scores: Scores) -> str:
    """Return the page with tables and pictures; without scores of rejection it has no ROC."""
    lead = _LEAD_OF_STREAMS if runs[0].outcome.matrix else _LEAD
    if runs[0].benchmark == "newcomer":
        lead = _LEAD_OF_NEWCOMERS
    return _TEMPLATE.render(
        title=title_of(runs),
        lead=lead,
        grids=grids(runs),
        pictures=[
            # A data URI: the ids in one SVG cannot meet those in another.
            ("data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode(), caption)
            for svg, caption in _pictures(runs, scores)
        ],
        facts=facts_of(runs),
    )


def _pictures(runs: Sequence[Run], scores: Scores) -> Iterator[tuple[str, str]]:
    """Yield each picture of the page, an SVG, and what it shows."""
    outcomes = [run.outcome for run in runs]
    yield from ((shown.svg, shown.caption) for outcome in outcomes for shown in outcome.shown)
    if outcomes[0].matrix:
        yield plots.heat_map(runs), "Accuracy on each task after each task, mean over the seeds."
        yield plots.aa_over_time(runs), "Average accuracy over the tasks learnt so far."
    if rejection := [s for of in scores for s in of.values() if len(s.known) and len(s.unknown)]:
        yield plots.roc(rejection), "Rejection of what was never trained on; the line is at 5 %."
        yield plots.energy_histograms(rejection), "Energy and the gate's score of known and unknown."
    if table := table_over_seeds([outcome.table for outcome in outcomes]):
        for name in ("auc", "acc"):
            caption = f"{name} by what was trained on (rows) and tested on (columns)."
            yield plots.cross_map(table, name), caption
    if single := nested_over_seeds([outcome.by_distortion for outcome in outcomes]):
        trained = outcomes[0].about.get("by_distortion_trained_on")
        for name in ("auc", "acc"):
            caption = f"{name} by distortion and level, trained on {trained}, one distortion at a time."
            yield plots.distortion_map(single, name), caption
            yield plots.distortion_curves(single, name), f"The same {name} as curves."


def title_of(runs: Sequence[Run]) -> str:
    """Return what a report is headed by."""
    first, tasks = runs[0], len(runs[0].outcome.tasks)
    task = f" --task {first.task}" if first.task else ""
    return f"forgewatch benchmark {first.benchmark}{task}: {first.data}" + (
        f", {tasks} tasks" if tasks else ""
    )


def facts_of(runs: Sequence[Run]) -> dict[str, str]:
    """Return what to repeat the runs by, by name."""
    first = runs[0]
    facts = {
        "command": shlex.join(first.command),
        "seeds": ", ".join(str(run.seed) for run in runs),
        "data": f"{first.data} {first.data_digest}",
        "device": first.device,
        "seconds a run": ", ".join(f"{run.seconds:.0f}" for run in runs),
    }
    told = {"options": first.options, "versions": first.versions, "about": first.outcome.about}
    told["left out"] = list(first.outcome.notes)
    return facts | {name: json.dumps(value, sort_keys=True) for name, value in told.items() if value}

"""A report as one HTML page that stands alone: no script, no font and no file from elsewhere."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jinja2 import Environment

from updater.benchmark.report.table import Grid

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
{% for picture in pictures %}
<figure><img src="{{ picture.address }}" alt="{{ picture.caption }}">
<figcaption>{{ picture.caption }}</figcaption></figure>
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


@dataclass(frozen=True)
class Picture:
    """An SVG and what it shows, in one sentence."""

    svg: str
    caption: str

    @property
    def address(self) -> str:
        """The picture as a data URI: the ids in one SVG cannot meet those in another."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()


def page(
    title: str,
    lead: str,
    grids: Sequence[Grid],
    pictures: Sequence[Picture] = (),
    facts: Mapping[str, str] | None = None,
) -> str:
    """Return the page; every text is escaped. facts: what to repeat the runs by, by name."""
    return _TEMPLATE.render(title=title, lead=lead, grids=grids, pictures=pictures, facts=facts or {})

"""Each room's README.md has its settings and its tree; as a script, this writes them and the chart's anew."""

import ast
import re
import runpy
import subprocess
from pathlib import Path

import pytest
from pydantic import SecretStr

from deploy.settings import DeploySettings
from detector.settings import DetectorSettings
from ingest.process.frame import ProcessSettings
from ingest.settings import IngestSettings
from memory.settings import MemorySettings
from updater.settings import UpdaterSettings

ROOT = Path(__file__).parents[1]
SETTINGS = {
    "ingest": (ProcessSettings, IngestSettings),
    "detector": (DetectorSettings,),
    "memory": (MemorySettings,),
    "updater": (UpdaterSettings,),
    "deploy": (DeploySettings,),
}


def settings_table(room):
    lines = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for kind in SETTINGS[room]:
        lines += [_setting(kind, name) for name in kind.model_fields]
    return "\n".join(lines)


def _setting(kind, name):
    field = kind.model_fields[name]
    default = field.get_default(call_default_factory=True)
    shown = "" if default is None or isinstance(default, SecretStr) else f"`{default}`"
    if isinstance(default, frozenset | dict):
        shown = ""
    return f"| `{kind.model_config['env_prefix']}{name.upper()}` | {shown} | {field.description} |"


def tree(room):
    listed = subprocess.run(["git", "ls-files", room], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = []
    for path in sorted(path for path in listed.stdout.splitlines() if path.endswith("__init__.py")):
        purpose = (ast.get_docstring(ast.parse((ROOT / path).read_text())) or "").splitlines()[0]
        name = path.removesuffix("__init__.py").removeprefix(f"{room}/") or f"{room}/"
        lines.append(f"    {name:25} {purpose}")
    return "\n".join(lines)


def metrics_table(room):
    """By the syntax tree: some families are only made where a database answers."""
    lines = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for path in sorted((ROOT / room).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            match call:
                case ast.Call(ast.Name(of), [ast.Constant(str(name)), ast.Constant(meaning), *labels]):
                    if not name.startswith("forgewatch_"):
                        continue
                    labels += [keyword.value for keyword in call.keywords if keyword.arg == "labels"]
                    named = ", ".join(f"`{label.value}`" for each in labels for label in each.elts)
                    kind = "gauge" if of == "Lag" else of.removesuffix("MetricFamily").lower()
                    name += "_total" if kind == "counter" else ""
                    lines.append(f"| `{name}` | {kind} | {named} | {meaning} |")
    return "\n".join(lines)


METRICS = ROOT / "deploy/METRICS.md"


def with_tables(page):
    for room in SETTINGS:
        begin, end = markers(room)
        page = page.split(begin)[0] + begin + metrics_table(room) + end + page.split(end.lstrip("\n"))[1]
    return page


PARTS = {"settings": settings_table, "tree": tree}


def readme(room):
    return ROOT / room / "README.md"


def markers(name):
    return f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"


def part(text, name):
    begin, end = markers(name)
    return text.split(begin)[1].split(end)[0]


@pytest.mark.parametrize("room", SETTINGS)
def test_each_rooms_readme_names_every_setting_with_its_default(room):
    assert part(readme(room).read_text(), "settings") == settings_table(room)


@pytest.mark.parametrize("room", SETTINGS)
def test_each_rooms_readme_names_every_folder_with_its_purpose(room):
    assert part(readme(room).read_text(), "tree") == tree(room)


def test_the_page_of_metrics_names_each_with_its_meaning():
    assert METRICS.read_text() == with_tables(METRICS.read_text())


PATHS = re.compile(r"`((?:[a-z_]+/)+(?:[a-z_0-9]+\.py)?)`")


@pytest.mark.parametrize("room", [".", *SETTINGS])
def test_every_path_that_a_readme_names_is_there(room):
    said = (ROOT / room / "README.md").read_text().partition("## Settings")[0]
    named = [path for path in PATHS.findall(said) if not path.startswith("file:")]
    assert [path for path in named if not any((at / path).exists() for at in (ROOT, ROOT / room))] == []


def test_the_tour_is_short_enough_for_a_day():
    tour = (ROOT / "CONTRIBUTING.md").read_text().partition("## The tour")[2].partition("\n## ")[0]
    assert len(paths := PATHS.findall(tour)) in range(15, 26)
    assert sum(len((ROOT / path).read_text().splitlines()) for path in paths) <= 6000


LONGEST_SENTENCE = 40
PAGES = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()


def sentences(page):
    """The sentences of a page's prose and of its tables' cells, without code and without generated parts."""
    page = re.sub(r"<!-- (\w+) -->.*?<!-- end of \1 -->|```.*?```", "", page, flags=re.DOTALL)
    blocks, block = [], ""
    for line in [*page.splitlines(), ""]:
        if line.lstrip().startswith("|"):
            blocks += line.strip(" |").split(" | ")
        elif re.match(r"\s*([-*]|\d+\.) |#|    |$", line):  # an item, a heading, code, a paragraph's end
            blocks.append(block)
            block = "" if line.startswith(("#", "    ")) else line
        else:
            block += " " + line
    plain = (re.sub(r"`[^`]*`", "CODE", re.sub(r"\]\([^)]*\)", "]", text)) for text in blocks)
    return [sentence for text in plain for sentence in re.split(r"[.!?][)\]*]*\s+(?=[*_(]*[A-Z0-9])", text)]


@pytest.mark.parametrize("name", PAGES)
def test_no_sentence_of_a_page_is_too_long_to_be_read_at_once(name):
    counted = {sentence: len(sentence.split()) for sentence in sentences((ROOT / name).read_text())}
    assert {sentence for sentence, words in counted.items() if words > LONGEST_SENTENCE} == set()


def test_a_sentence_ends_where_its_item_or_its_cell_does():
    page = "One, `a b c`. Two\nmore (see x).\n- An item\n  goes on\n\n| a cell | another. One |\n    code\n"
    plain = ["One, CODE", "Two more (see x).", "- An item goes on", "a cell", "another", "One"]
    assert [" ".join(s.split()) for s in sentences(page) if s.strip()] == plain


if __name__ == "__main__":
    for room in SETTINGS:
        text = readme(room).read_text()
        for name, make in PARTS.items():
            begin, end = markers(name)
            text = text.split(begin)[0] + begin + make(room) + end + text.split(end.lstrip("\n"))[1]
        readme(room).write_text(text)
    METRICS.write_text(with_tables(METRICS.read_text()))
    runpy.run_path(str(ROOT / "tests/helm/test_chart_values.py"), run_name="__main__")

"""Each room's README.md has its settings and its tree; as a script, this writes them and the chart's anew."""

import ast
import re
import runpy
import subprocess
from pathlib import Path

import pytest
from pydantic import SecretStr
from pydantic_settings import BaseSettings

from deploy.settings import DeploySettings
from detector.settings import DetectorSettings
from ingest.process.settings import ProcessSettings
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


def settings_table(room: str) -> str:
    lines = ["| variable | default | what |", "| --- | --- | --- |"]
    for kind in SETTINGS[room]:
        lines += [_setting(kind, name) for name in kind.model_fields]
    return "\n".join(lines)


def _setting(kind: type[BaseSettings], name: str) -> str:
    field = kind.model_fields[name]
    default = field.get_default(call_default_factory=True)
    shown = "" if default is None or isinstance(default, SecretStr) else f"`{default}`"
    if isinstance(default, frozenset | dict):
        shown = ""
    return f"| `{kind.model_config['env_prefix']}{name.upper()}` | {shown} | {field.description} |"


def tree(room: str) -> str:
    listed = subprocess.run(["git", "ls-files", room], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = []
    for path in sorted(path for path in listed.stdout.splitlines() if path.endswith("__init__.py")):
        purpose = (ast.get_docstring(ast.parse((ROOT / path).read_text())) or "").splitlines()[0]
        name = path.removesuffix("__init__.py").removeprefix(f"{room}/") or f"{room}/"
        lines.append(f"    {name:25} {purpose}")
    return "\n".join(lines)


PARTS = {"settings": settings_table, "tree": tree}


def readme(room: str) -> Path:
    return ROOT / room / "README.md"


def markers(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"


def part(text: str, name: str) -> str:
    begin, end = markers(name)
    return text.split(begin)[1].split(end)[0]


@pytest.mark.parametrize("room", SETTINGS)
def test_each_rooms_readme_names_every_setting_with_its_default(room):
    assert part(readme(room).read_text(), "settings") == settings_table(room)


@pytest.mark.parametrize("room", SETTINGS)
def test_each_rooms_readme_names_every_folder_with_its_purpose(room):
    assert part(readme(room).read_text(), "tree") == tree(room)


PATHS = re.compile(r"`((?:[a-z_]+/)+(?:[a-z_0-9]+\.py)?)`")


@pytest.mark.parametrize("room", [".", *SETTINGS])
def test_every_path_that_a_readme_names_is_there(room):
    said = (ROOT / room / "README.md").read_text().partition("## Settings")[0]
    named = [path for path in PATHS.findall(said) if not path.startswith("file:")]
    assert [path for path in named if not any((at / path).exists() for at in (ROOT, ROOT / room))] == []


def test_the_readme_is_for_a_newcomer_with_ten_minutes():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 220


if __name__ == "__main__":
    for room in SETTINGS:
        text = readme(room).read_text()
        for name, make in PARTS.items():
            begin, end = markers(name)
            text = text.split(begin)[0] + begin + make(room) + end + text.split(end.lstrip("\n"))[1]
        readme(room).write_text(text)
    runpy.run_path(str(ROOT / "tests/helm/test_chart_values.py"), run_name="__main__")

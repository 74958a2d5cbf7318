"""README.md has the settings and the tree of the code; run as a script, this writes them anew."""

import ast
import subprocess
from pathlib import Path

from pydantic import SecretStr
from pydantic_settings import BaseSettings

from deploy.settings import DeploySettings
from detector.settings import DetectorSettings
from ingest.settings import IngestSettings
from memory.settings import MemorySettings
from updater.settings import UpdaterSettings

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
ROOMS = ("ingest", "detector", "memory", "updater", "deploy")
SETTINGS = (IngestSettings, DetectorSettings, MemorySettings, UpdaterSettings, DeploySettings)


def settings_table() -> str:
    lines = ["| variable | default | what |", "| --- | --- | --- |"]
    for kind in SETTINGS:
        lines += [_setting(kind, name) for name in kind.model_fields]
    return "\n".join(lines)


def _setting(kind: type[BaseSettings], name: str) -> str:
    field = kind.model_fields[name]
    default = field.get_default(call_default_factory=True)
    shown = "" if default is None or isinstance(default, SecretStr) else f"`{default}`"
    if isinstance(default, frozenset | dict):
        shown = ""
    return f"| `{kind.model_config['env_prefix']}{name.upper()}` | {shown} | {field.description} |"


def tree() -> str:
    listed = subprocess.run(["git", "ls-files", *ROOMS], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = []
    for room in ROOMS:
        for path in sorted(line for line in listed.stdout.splitlines() if line.startswith(f"{room}/")):
            if not path.endswith(".py"):
                continue
            purpose = (ast.get_docstring(ast.parse((ROOT / path).read_text())) or "").splitlines()[0]
            name = path.removesuffix("/__init__.py") + "/" if path.endswith("__init__.py") else path
            lines.append(f"    {name:44}{purpose}")
    return "\n".join(lines)


PARTS = {"settings": settings_table, "tree": tree}


def markers(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"


def part(text: str, name: str) -> str:
    begin, end = markers(name)
    return text.split(begin)[1].split(end)[0]


def test_the_readme_names_every_setting_with_its_default() -> None:
    assert part(README.read_text(), "settings") == settings_table()


def test_the_readme_names_every_module_with_its_purpose() -> None:
    assert part(README.read_text(), "tree") == tree()


if __name__ == "__main__":
    readme = README.read_text()
    for name, make in PARTS.items():
        begin, end = markers(name)
        readme = readme.replace(begin + part(readme, name) + end, begin + make() + end)
    README.write_text(readme)

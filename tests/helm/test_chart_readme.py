"""The room's README has each file of helm/ in its tree, by itself or by its folder, and nothing else."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tree_has_each_file_and_nothing_else() -> None:
    listed = subprocess.run(["git", "ls-files", "helm"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [path.removeprefix("helm/") for path in listed.stdout.split()]
    tree = (ROOT / "helm" / "README.md").read_text().partition("## The tree")[2]
    named = re.findall(r"^    (\S+) {2,}\S", tree, re.MULTILINE)
    covered = {
        path
        for path in files
        for name in named
        if path == name or (name.endswith("/") and path.startswith(name))
    }
    assert sorted(set(files) - covered) == []
    assert [name for name in named if not any(path.startswith(name) for path in files)] == []

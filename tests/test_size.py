"""The budgets of the house: code, files, words and tests. They only go down: whoever adds removes elsewhere.

`python tests/test_size.py` prints what stands beside each budget.
"""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_MODULE_LINES = 400
PACKAGES = {
    "ingest": (3752, 36),
    "detector": (5182, 53),
    "memory": (5313, 60),
    "updater": (9141, 105),
    "updater/benchmark": (7527, 87),
    "deploy": (14316, 158),
    "helm": (834, 9),
}
"""Lines of code and files of each package; `updater` without its laboratory."""
CODE_LINES, FILES = 46_065, 508
"""Of all packages. One's number rises only where those of others fall by more in the same change."""
TEST_LINES = 67_980
SIMULATION_LINES = 1679
"""Lines of the simulations, which the packages had; their tests are among the tests."""
WORDS = {
    "README.md": 896,
    "CONTRIBUTING.md": 1015,
    "SECURITY.md": 879,
    "deploy/README.md": 697,
    "deploy/METRICS.md": 33,
    "deploy/OPERATIONS.md": 1694,
    "deploy/RESULTS.md": 989,
    "deploy/demo/README.md": 942,
    "deploy/page/README.md": 377,
    "detector/OPERATIONS.md": 1082,
    "detector/README.md": 695,
    "detector/RESULTS.md": 251,
    "helm/README.md": 617,
    "helm/RESULTS.md": 748,
    "helm/forgewatch/BACKUP.md": 1295,
    "helm/forgewatch/README.md": 773,
    "helm/images/README.md": 556,
    "ingest/README.md": 644,
    "memory/OPERATIONS.md": 1311,
    "memory/README.md": 692,
    "memory/RESULTS.md": 1282,
    "tests/README.md": 617,
    "updater/OPERATIONS.md": 676,
    "updater/README.md": 695,
    "updater/benchmark/LOG.md": 2389,
    "updater/benchmark/README.md": 1566,
    "updater/benchmark/RESULTS.md": 3737,
}
"""Words of each page, without its generated parts."""


def _sources(*patterns):
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted({ROOT / name for name in names if name and (ROOT / name).exists()})


def code_lines(source):
    """The lines of a module without blanks, comments, docstrings and imports."""
    tree, left_out = ast.parse(source), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and ast.get_docstring(node) is not None:
                left_out |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    code = (line.strip() for n, line in enumerate(source.split("\n"), start=1) if n not in left_out)
    return sum(bool(line) and not line.startswith("#") for line in code)


def words(page):
    return len(re.sub(r"<!-- (\w+) -->.*?<!-- end of \1 -->", "", page, flags=re.DOTALL).split())


def package_size(package):
    """The lines of code and the files of a package."""
    inner = [name for name in PACKAGES if name.startswith(f"{package}/")]
    paths = [
        path
        for path in _sources(f"{package}/*.py")
        if not any(path.is_relative_to(ROOT / name) for name in inner)
    ]
    return sum(code_lines(path.read_text()) for path in paths), len(paths)


def simulations():
    return [path for path in _sources("tests/simulations/*.py") if not path.name.startswith("test_")]


def sources_of_tests():
    return sorted(set(_sources("tests/*.py")) - set(simulations()))


def length(paths):
    return sum(len(path.read_text().splitlines()) for path in paths)


def test_code_lines_are_those_without_blanks_comments_docstrings_and_imports():
    head = '"""A module."""\n\nimport os\nfrom a import (\n    b,\n)\n\n# why\n'
    source = head + 'def f():\n    """F."""\n    return (\n        b\n    )\n'
    assert code_lines(source) == 4


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_keeps_its_budget_of_code_and_files(package):
    lines, files = package_size(package)
    assert (lines <= PACKAGES[package][0], files <= PACKAGES[package][1]) == (True, True), (lines, files)


def test_the_packages_budgets_do_not_grow_together():
    assert [sum(column) for column in zip(*PACKAGES.values(), strict=True)] == [CODE_LINES, FILES]


@pytest.mark.parametrize("page", WORDS)
def test_a_page_keeps_its_budget_of_words(page):
    assert words((ROOT / page).read_text()) <= WORDS[page]


def test_each_readme_has_a_budget():
    generated = {"helm/forgewatch/dashboards/README.md", "helm/forgewatch/rules/README.md"}
    readmes = {path.relative_to(ROOT).as_posix() for path in _sources("*README.md")}
    assert {name for name in readmes if "/runbooks/" not in name} - generated <= WORDS.keys()


def test_the_tests_keep_their_budget_of_lines():
    lines, simulated = length(sources_of_tests()), length(simulations())
    assert (lines <= TEST_LINES, simulated <= SIMULATION_LINES) == (True, True), (lines, simulated)


def test_no_module_is_too_long_to_be_read():
    paths = _sources(*(f"{package}/*.py" for package in PACKAGES), "tests/*.py")
    lengths = {path.relative_to(ROOT).as_posix(): length([path]) for path in paths}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_MODULE_LINES} == {}


if __name__ == "__main__":
    for package, budget in PACKAGES.items():
        print(package, *package_size(package), "of", *budget)
    for page, budget in WORDS.items():
        print(page, words((ROOT / page).read_text()), "of", budget)
    print("tests", length(sources_of_tests()), "of", TEST_LINES)
    print("simulations", length(simulations()), "of", SIMULATION_LINES)

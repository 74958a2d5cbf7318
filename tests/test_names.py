"""Functions and classes have the field's terms for names. The numbers only go down."""

import ast
import re
from collections import Counter
from functools import cache
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
    "declares": "the declarations of the code",
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

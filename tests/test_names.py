"""Functions and classes have the field's terms for names. The numbers only go down."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = "ingest", "detector", "memory", "updater", "deploy", "helm"
BANNED = {"said", "told", "shown", "found", "asked", "one", "each"}
PARTICIPLES, TWICE, VARIABLES = 1, 5, 9
_IRREGULAR = (
    "begun|bound|built|caught|dealt|done|drawn|fallen|forgotten|found|given|gone|grown|heard|held|hidden|hung"
    "|kept|known|laid|led|learnt|left|lost|made|meant|met|paid|said|seen|sent|shown|sold|sought|spent|spoken|stuck|sworn|taken"
    "|taught|thrown|told|torn|understood|won|worn|woven|written"
)


def is_participle(name: str) -> bool:
    return re.fullmatch(rf"_*(?:{_IRREGULAR}|(?!embed)[a-z]+[^e]ed)", name) is not None


def definitions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    for path in (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def test_a_function_is_a_verb_or_a_noun_and_no_bare_participle():
    bare = [
        at for at, node in definitions() if not isinstance(node, ast.ClassDef) and is_participle(node.name)
    ]
    assert len(bare) <= PARTICIPLES, bare


def test_no_function_or_class_is_called_by_a_word_for_anything():
    assert [at for at, node in definitions() if node.name.strip("_").lower() in BANNED] == []


def test_few_variables_are_called_by_a_word_for_anything():
    names = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.id}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in BANNED
    ]
    assert len(names) <= VARIABLES, names


def test_a_class_name_is_used_once():
    uses = Counter(node.name for _, node in definitions() if isinstance(node, ast.ClassDef))
    assert len([name for name, count in uses.items() if count > 1]) <= TWICE


def test_a_participle_is_told_from_a_verb():
    names = "_trained", "kept", "embed", "feed", "train"
    assert [name for name in names if is_participle(name)] == ["_trained", "kept"]


def test_the_signature_of_a_test_bears_no_annotations_which_nobody_would_check():
    tests = (path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__))
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(tests)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if node.returns or any(each.annotation for each in node.args.args)
    ]
    assert named == []

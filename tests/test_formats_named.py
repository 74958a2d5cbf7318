"""Pillow is told which formats to try, wherever a picture is opened: it knows some forty."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("ingest", "detector", "memory", "updater", "deploy", "helm")


def opened_as_anything(source: str) -> list[int]:
    """The lines of a source text that open a picture by Pillow without a list of formats."""
    return sorted(
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "open"
        and isinstance(node.func.value, ast.Name | ast.Attribute)
        and ast.unparse(node.func.value).split(".")[-1] == "Image"
        and "formats" not in {keyword.arg for keyword in node.keywords}
    )


@pytest.mark.parametrize("room", ROOMS)
def test_pictures_are_opened_by_an_explicit_list_of_formats(room):
    sources = {path: path.read_text() for path in (ROOT / room).rglob("*.py")}
    assert sources
    assert {path: lines for path, source in sources.items() if (lines := opened_as_anything(source))} == {}


def test_a_picture_that_is_opened_as_anything_would_be_found():
    """The negative control."""
    assert opened_as_anything("with Image.open(path) as image: pass\nPIL.Image.open(file, 'r')") == [1, 2]
    assert opened_as_anything("Image.open(path, formats=('PNG',)), gzip.open(path), path.open()") == []

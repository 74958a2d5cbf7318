"""A published set becomes labelled exemplars in one command, whoever has it; a mistyped name is one line."""

from collections import defaultdict
from pathlib import Path

import pytest
from published import TREES

from deploy.cli.main import main
from deploy.client.http import Client
from deploy.client.importing import import_folder
from deploy.server.services import Services
from memory import rows
from updater.data.layouts.layouts import labelled_files
from updater.progress import uncounted


@pytest.mark.slow
@pytest.mark.parametrize("name", TREES)
def test_a_set_becomes_exemplars_with_their_families_and_each_group_on_one_side(
    name: str, tmp_path: Path, api: Client, services: Services
) -> None:
    folder = TREES[name](tmp_path / name)
    files, _ = labelled_files(name, folder)
    done = import_folder(folder, api, uncounted, files)
    assert done.skipped == []
    assert sum(done.new.values()) == len(files)
    with services.memory.read() as connection:
        exemplars = rows.select_exemplars(connection)
    assert {str(exemplar.family) for exemplar in exemplars} == set(done.new)
    assert {exemplar.source for exemplar in exemplars} == {f"import:{name}"}
    sides: dict[str, set[str | None]] = defaultdict(set)
    for exemplar in exemplars:
        sides[exemplar.group].add(exemplar.split)
    assert all(len(of_group) == 1 for of_group in sides.values())
    assert {place.split("/")[1] for place, _ in files if place.count("/") > 1} <= sides.keys()
    assert import_folder(folder, api, uncounted, files).already == len(files)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ("--layout", "dfcd"),
            2,
            "--layout dfcd is none: choose of cddb, deepfakebench, dfdc",
        ),
        (
            ("--layout", "dfdc"),
            1,
            "has no dfdc_train_part_N/metadata.json and no test/labels.csv",
        ),
        (("--layout", "forgerynet"), 1, "name the folder that holds Training and Validation"),
    ],
)
def test_a_mistyped_layout_and_a_folder_that_is_none_of_it_are_one_line(
    words: tuple[str, ...], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(tmp_path), *words]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line

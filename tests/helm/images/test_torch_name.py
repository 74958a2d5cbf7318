"""TorchServe's Python worker needs one name of torch: what helm/images/torchserve/torch gives."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ts", reason="TorchServe is not installed")

ROOT = Path(__file__).parents[3]
STAND_IN = ROOT / "helm" / "images" / "torchserve"
SAID = (
    "import sys, ts.model_service_worker, detector.handler;"
    "print(*(module.__file__ for name, module in sys.modules.items()"
    " if name.partition('.')[0] in ('ts', 'torch') and module.__file__), sep='\\n')"
)


def names_of_torch(source: str) -> set[str]:
    """What a source text asks of torch, as torch.NAME or by importing from it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                found.add(name)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] == "torch":
                found |= {alias.name for alias in node.names}
    return found


@pytest.fixture(scope="module")
def loaded() -> list[Path]:
    """The files of TorchServe and of torch that a worker with Forgewatch's handler loads."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(STAND_IN), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", SAID], env=environment, capture_output=True, text=True, check=True
    )
    return [Path(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_worker_loads_the_stand_in_and_asks_it_for_nothing_else_before_it_pickles(
    loaded: list[Path],
) -> None:
    assert [path for path in loaded if "torch" in path.parts] == [STAND_IN / "torch" / "__init__.py"]
    asked = {path.name: names_of_torch(path.read_text()) for path in loaded if "ts" in path.parts}
    assert {name: names for name, names in asked.items() if names} == {
        "otf_message_handler.py": {"Tensor", "save"}  # it saves what is a Tensor, and nothing is
    }


@pytest.mark.slow
def test_replies_of_bytes_pass_and_no_other_kind_reaches_a_pickle() -> None:
    script = (
        "import sys; from ts.protocol.otf_message_handler import create_predict_response as respond\n"
        "for reply in (b'verdict', object()):\n"
        "    sys.stdout.buffer.write(respond([reply], {0: 'id'}, 'OK', 200))"
    )
    environment = os.environ | {"PYTHONPATH": str(STAND_IN)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
    assert b"verdict" in done.stdout
    assert b"Unsupported model output data type." in done.stdout


def test_a_name_that_is_asked_for_would_be_seen() -> None:
    assert names_of_torch("import torch\nfrom torch.nn import Module\ntorch.load('x')") == {"Module", "load"}

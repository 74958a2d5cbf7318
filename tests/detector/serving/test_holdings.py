"""Workers that share a model store know what the others hold, and what the dead no longer do."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from detector.serving.loading import Holdings

A, B = "a" * 64, "b" * 64

HOLD = """
import sys
from pathlib import Path
from detector.serving.loading import Holdings
holdings = Holdings(Path(sys.argv[1]))
holdings.hold([sys.argv[2]])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def neighbour(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), B],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def held(holdings: Holdings, digests: set[str]) -> set[str]:
    with holdings.hold_alone(digests) as everything:
        return everything


def test_what_another_process_holds_is_seen_until_it_is_killed(
    tmp_path: Path, neighbour: "subprocess.Popen[str]"
) -> None:
    with closing(Holdings(tmp_path)) as holdings:
        assert held(holdings, {A}) == {A, B}
        neighbour.kill()
        neighbour.wait()
        assert held(holdings, {A}) == {A}
        assert len(list((tmp_path / "holdings").glob("*.json"))) == 1


def test_a_worker_holds_the_last_that_it_said(tmp_path: Path) -> None:
    with closing(Holdings(tmp_path)) as other:
        with closing(Holdings(tmp_path)) as one:
            one.hold({A, B})
            assert held(other, set()) == {A, B}
            one.hold({B})
            assert held(other, set()) == {B}
        assert held(other, set()) == set()

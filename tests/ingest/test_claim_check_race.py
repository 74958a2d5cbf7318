"""Someone who may write below the root exchanges folders for links while datarefs are fetched."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ingest import claim_check
from ingest.claim_check import ClaimCheckError, fetch

TRIES = 4_000
# `sub` is by turns a folder and a link to the folder outside: each exchange is one system call.
SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
here, link = (os.fsencode(path) for path in sys.argv[1:])
while True:
    if libc.renameat2(-100, here, -100, link, 2):
        sys.exit(os.strerror(ctypes.get_errno()))
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A root whose folder `sub` becomes a link out of the root and a folder again, all the time."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder, text in ((root / "sub", "inside"), (outside, "secret")):
        folder.mkdir(parents=True)
        (folder / "file").write_text(text)
    (root / "link").symlink_to(outside)
    swapping = subprocess.Popen([sys.executable, "-c", SWAP, str(root / "sub"), str(root / "link")])
    yield root
    assert swapping.poll() is None, "the exchange does not work here"
    swapping.kill()
    swapping.wait()


@pytest.mark.slow
def test_no_race_leads_out_of_the_root(root: Path) -> None:
    assert fetched(root, lambda said: said.count("inside") > 100 and len(said) > TRIES) == {
        "inside",
        "dataref_refused",
    }


def test_without_the_walk_the_race_is_won(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_by_path(top: Path, parts: tuple[str, ...]) -> int:
        return os.open(top.joinpath(*parts), os.O_RDONLY | os.O_NOFOLLOW)

    monkeypatch.setattr(claim_check, "_open_below", open_by_path)
    assert "secret" in fetched(root, lambda said: "secret" in said)


def fetched(root: Path, enough: Callable[[list[str]], bool]) -> set[str]:
    """What fetching the file again and again gives or is refused for, until that is enough."""
    said: list[str] = []
    deadline = time.monotonic() + 180
    while not enough(said):
        assert time.monotonic() < deadline, f"{len(said)} tries gave {set(said)}"
        for _ in range(100):
            try:
                said.append(fetch(f"file://{root}/sub/file", root, 100).decode())
            except ClaimCheckError as error:
                said.append(error.reason)
    return set(said)

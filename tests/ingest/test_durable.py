"""A power cut after any step: what is on disk then is told from the syncs alone."""

import errno
import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ingest.durable import ASIDE, file_aside, folder_aside, make_folder, rename_durably, write_durably


class Disk:
    """What a disk holds of a folder, as little or as much as POSIX allows, after each step below it.

    A file holds what it held at its last sync, else nothing; a folder's names are those of its last
    sync at the least, and those of this moment at the most.
    """

    def __init__(self, root, monkeypatch):
        self.root = root
        self.after_each = []
        self._contents = {}
        self._names = {}
        self._folders = set()
        for path in (root, *root.rglob("*")):
            self._synced(path)
        fsync = os.fsync

        def watched_sync(handle):
            fsync(handle)
            self._synced(Path(f"/proc/self/fd/{handle}").resolve())
            self._step()

        monkeypatch.setattr(os, "fsync", watched_sync)
        for name in ("replace", "rename", "mkdir"):
            self._watch(monkeypatch, name)

    def _watch(self, monkeypatch, name):
        function = getattr(os, name)

        def watched(*args, **options):
            function(*args, **options)
            self._step()

        monkeypatch.setattr(os, name, watched)

    def _step(self):
        self.after_each += [self.least(), self.most()]

    def _synced(self, path):
        number = path.stat().st_ino
        if path.is_dir():
            self._names[number] = {child.name: child.stat().st_ino for child in path.iterdir()}
            self._folders |= {number, *(child.stat().st_ino for child in path.iterdir() if child.is_dir())}
        else:
            self._contents[number] = path.read_bytes()

    def least(self):
        """The files after a cut that lost every name which was not synced."""
        return self._below(self.root.stat().st_ino, "")

    def _below(self, number, at):
        found = {}
        for name, child in self._names.get(number, {}).items():
            if child in self._folders:
                found |= self._below(child, f"{at}{name}/")
            else:
                found[f"{at}{name}"] = self._contents.get(child, b"")
        return {name: value for name, value in found.items() if ASIDE not in name}

    def most(self):
        """The files after a cut that kept every name as it is."""
        files = (path for path in self.root.rglob("*") if path.is_file())
        return {
            name: self._contents.get(path.stat().st_ino, b"")
            for path in files
            if ASIDE not in (name := str(path.relative_to(self.root)))
        }


def writes_by_file(path):
    with file_aside(path) as aside:
        aside.write_bytes(b"ne")
        with aside.open("ab") as file:
            file.write(b"w")


@pytest.mark.bar("C2")
@pytest.mark.parametrize("write", [lambda path: write_durably(path, b"new"), writes_by_file])
@pytest.mark.parametrize("before", [{}, {"deep/er/file": b"old"}])
def test_a_power_cut_finds_the_old_file_or_the_new_one(tmp_path, monkeypatch, write, before):
    for name, value in before.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(value)
    disk = Disk(tmp_path, monkeypatch)
    write(tmp_path / "deep" / "er" / "file")
    new = {"deep/er/file": b"new"}
    assert disk.least() == disk.most() == new
    assert len(disk.after_each) >= 6
    assert all(found in (before, new) for found in disk.after_each)


@pytest.mark.bar("C2")
def test_a_power_cut_finds_all_of_a_folder_or_none(tmp_path, monkeypatch):
    disk = Disk(tmp_path, monkeypatch)
    with folder_aside(tmp_path / "new" / "folder") as aside:
        (aside / "one").write_bytes(b"1")
        (aside / "below").mkdir()
        (aside / "below" / "two").write_bytes(b"2")
    new = {"new/folder/one": b"1", "new/folder/below/two": b"2"}
    assert disk.least() == disk.most() == new
    assert all(found in ({}, new) for found in disk.after_each)


@pytest.mark.bar("C2")
def test_a_power_cut_finds_a_folder_of_elsewhere_under_one_name_in_whole(tmp_path, monkeypatch):
    make_folder(tmp_path / "incoming" / "draft")
    make_folder(tmp_path / "kept")
    disk = Disk(tmp_path, monkeypatch)
    (tmp_path / "incoming" / "draft" / "one").write_bytes(b"1")
    rename_durably(tmp_path / "incoming" / "draft", tmp_path / "kept" / "one")
    assert disk.least() == disk.most() == {"kept/one/one": b"1"}
    assert all(found.get("kept/one/one") in (None, b"1") for found in disk.after_each)


def fail_at(monkeypatch, step, number):
    """Have the so-manieth call that a disk may refuse end with this error; returns the calls as they come."""
    calls = []

    def watch(name):
        function = getattr(os, name)

        def failing(*args, **options):
            calls.append(name)
            if len(calls) == step:
                raise OSError(number, os.strerror(number))
            return function(*args, **options)

        monkeypatch.setattr(os, name, failing)

    for name in ("fsync", "replace", "rename", "mkdir"):
        watch(name)
    return calls


@pytest.mark.bar("C2")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("write", [lambda path: write_durably(path, b"new"), writes_by_file])
@pytest.mark.parametrize("before", [{}, {"deep/er/file": b"old"}])
def test_a_disk_that_refuses_a_step_leaves_the_old_file_or_the_new_one(tmp_path, write, before, number):
    new, refused = {"deep/er/file": b"new"}, 0
    for step in range(1, 20):
        root = tmp_path / str(step)
        for name, value in before.items():
            (root / name).parent.mkdir(parents=True)
            (root / name).write_bytes(value)
        root.mkdir(exist_ok=True)
        with pytest.MonkeyPatch.context() as patched:
            calls = fail_at(patched, step, number)
            with suppress(OSError):
                write(root / "deep" / "er" / "file")
        found = {str(f.relative_to(root)): f.read_bytes() for f in root.rglob("*") if f.is_file()}
        assert found in (before, new)
        refused += len(calls) >= step
    assert refused >= 3


FILLS_THE_DISK = """
import subprocess, sys
from pathlib import Path
folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], check=True)
from ingest.durable import write_durably
write_durably(folder / "file", b"old")
try:
    write_durably(folder / "file", bytes(2**20))
except OSError as error:
    print(error.errno, (folder / "file").read_bytes(), [path.name for path in folder.iterdir()])
"""


@pytest.mark.bar("C2")
def test_a_disk_that_is_full_keeps_the_old_file(tmp_path):
    command = ["unshare", "-rm", sys.executable, "-c", FILLS_THE_DISK, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr or "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip("no mount namespace may be made here")
    assert done.stdout == f"{errno.ENOSPC} b'old' ['file']\n", done.stderr


def without_sync_of_the_file(path):
    aside = path.with_name(f"x{ASIDE}")
    aside.write_bytes(b"new")
    aside.replace(path)
    handle = os.open(path.parent, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def without_sync_of_the_folder(path):
    aside = path.with_name(f"x{ASIDE}")
    with aside.open("wb") as file:
        file.write(b"new")
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def in_a_new_folder_that_no_one_synced(path):
    (path.parent / "new").mkdir()
    write_durably(path.parent / "new" / path.name, b"new")


@pytest.mark.bar("C2")
@pytest.mark.parametrize(
    "write", [without_sync_of_the_file, without_sync_of_the_folder, in_a_new_folder_that_no_one_synced]
)
def test_the_disk_of_these_tests_loses_what_was_written_carelessly(tmp_path, monkeypatch, write):
    """The negative control: each step that is left out shows."""
    disk = Disk(tmp_path, monkeypatch)
    write(tmp_path / "file")
    kept = disk.least().values()
    torn = any(value == b"" for found in disk.after_each for value in found.values())
    assert torn or list(kept) != [b"new"]


@pytest.mark.parametrize("made", [file_aside, folder_aside])
def test_an_error_while_it_is_filled_leaves_nothing(tmp_path, made):
    write_durably(tmp_path / "kept", b"old")
    with pytest.raises(KeyboardInterrupt), made(tmp_path / "kept"):
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_bytes() == b"old"


def test_a_folder_goes_over_none_that_holds_something(tmp_path):
    write_durably(tmp_path / "folder" / "old", b"old")
    with pytest.raises(OSError), folder_aside(tmp_path / "folder") as aside:  # noqa: PT011 - ENOTEMPTY has no class
        (aside / "new").write_bytes(b"new")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["folder", "folder/old"]


def test_what_is_written_is_for_this_user_alone(tmp_path):
    write_durably(tmp_path / "folder" / "file", b"secret")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("folder", "folder/file")]
    assert modes == [0o700, 0o600]

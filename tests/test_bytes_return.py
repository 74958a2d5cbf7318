"""No file's bytes return to those of an earlier commit unnoticed: so a merge once undid a mend.

Looked at are the commits that are not on the upstream branch yet; where all are, the newest ones. Who means
it says so in the message of that commit, or of a later one, by a trailer a file:

    Older-bytes: deploy/cli/benchmark.py
"""

import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")

ROOT = Path(__file__).parents[1]
NEWEST = 50
"""Commits that are looked at where none is new: a clone may be of what was pushed already."""
TRAILER = "Older-bytes"
_NOTHING = "0" * 40


class Change(NamedTuple):
    """A file of a commit that differs from one of its parents; blobs as git names them."""

    commit: str
    parent: str
    path: str
    before: str
    after: str


def git(repository: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=repository, check=True, capture_output=True, text=True
    ).stdout


def new_commits(repository: Path) -> dict[str, list[str]]:
    """The commits that are looked at, the newest first, each with its parents."""
    listed = ["rev-list", "--topo-order", "--parents"]
    for upstream in ("@{upstream}", "origin/main"):
        try:
            lines = git(repository, *listed, f"{upstream}..HEAD").splitlines()
        except subprocess.CalledProcessError:
            continue
        if lines:
            break
    else:
        lines = git(repository, *listed, f"--max-count={NEWEST}", "HEAD").splitlines()
    return {commit: parents for commit, *parents in map(str.split, lines)}


def changes(repository: Path, commits: dict[str, list[str]]) -> Iterator[Change]:
    for commit, parents in commits.items():
        for parent in parents:
            raw = git(repository, "diff-tree", "-r", "-z", "--no-renames", "--raw", parent, commit)
            fields = iter(raw.split("\0"))
            for facts, path in zip(fields, fields, strict=False):
                before, after = facts.split()[2:4]
                if before != after:
                    yield Change(commit, parent, path, before, after)


def reachable(commits: dict[str, list[str]], of: str) -> tuple[set[str], set[str]]:
    """A commit with its ancestors, as far as these are looked at; and those right before them."""
    inside, before, waiting = set[str](), set[str](), [of]
    while waiting:
        commit = waiting.pop()
        if commit not in commits:
            before.add(commit)
        elif commit not in inside:
            inside.add(commit)
            waiting += commits[commit]
    return inside, before


class Blobs:
    """Which blobs a path has had, by the commit up to which."""

    def __init__(self, repository: Path, commits: dict[str, list[str]], changed: list[Change]) -> None:
        self._commits = commits
        self._of_commit = defaultdict[tuple[str, str], set[str]](set)
        for change in changed:
            self._of_commit[change.commit, change.path] |= {change.before, change.after}
        paths = sorted({change.path for change in changed if change.before != _NOTHING})
        for commit in {parent for parents in commits.values() for parent in parents} - commits.keys():
            form = ("--format=", "--raw", "-z", "-m", "--no-abbrev", "--no-renames", "--full-history")
            fields = iter(git(repository, "log", *form, commit, "--", *paths).split("\0") if paths else ())
            for facts, path in zip(fields, fields, strict=False):
                self._of_commit[commit, path] |= set(facts.split()[2:4])

    def until(self, commit: str, path: str) -> set[str]:
        inside, before = reachable(self._commits, commit)
        return set[str]().union(*(self._of_commit[each, path] for each in inside | before)) - {_NOTHING}


def returned(repository: Path) -> list[str]:
    """Which files have older bytes again since which commit, a line each, but for those that are meant."""
    commits = new_commits(repository)
    changed = list(changes(repository, commits))
    blobs = Blobs(repository, commits, changed)
    meant = {
        (each, path)
        for commit in commits
        for path in trailers(repository, commit)
        for each in reachable(commits, commit)[0]
    }
    differs = {(change.commit, change.path, change.parent) for change in changed}
    found = {}
    for commit, parent, path, before, after in changed:
        if (commit, path) in meant or after not in blobs.until(parent, path):
            continue
        brought = [each for each in commits[commit] if (commit, path, each) not in differs]
        if any(before in blobs.until(each, path) for each in brought):
            continue  # that side of the merge has had the newer bytes, and was named for it by itself
        subject = git(repository, "log", "-1", "--format=%h %s", commit).strip()
        found[commit, path] = f"{path} has older bytes again since {subject}"
    return list(found.values())


def trailers(repository: Path, commit: str) -> list[str]:
    form = f"--format=%(trailers:key={TRAILER},valueonly)"
    return [line.strip() for line in git(repository, "log", "-1", form, commit).splitlines() if line.strip()]


def test_no_file_has_older_bytes_again_unless_its_commit_says_so() -> None:
    try:
        whole = git(ROOT, "rev-parse", "--is-shallow-repository", "--show-cdup").splitlines()
    except subprocess.CalledProcessError:
        pytest.skip("no git repository")
    if whole != ["false", ""]:
        pytest.skip("its history is cut off, or it is a part of another repository")
    assert returned(ROOT) == [], f"if that is meant, a commit's message says so: `{TRAILER}: PATH`"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose branch `main` has a file of each name, and whose `side` began there."""
    git(tmp_path, "init", "-q", "-b", "main")
    for name, value in (("user.name", "ada"), ("user.email", "ada@example.com"), ("commit.gpgsign", "false")):
        git(tmp_path, "config", name, value)
    commit(tmp_path, "begun", schedule="asks once", runs="one", table="a")
    git(tmp_path, "branch", "side")
    return tmp_path


def commit(repository: Path, message: str, **files: str) -> None:
    for name, text in files.items():
        (repository / name).write_text(text)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "--allow-empty", "-m", message)


def merge(repository: Path, message: str, **files: str) -> None:
    """Merge `side` into `main`, with these files as they are then."""
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--no-ff", "--no-commit", "side")
    commit(repository, message, **files)


def mended(repository: Path) -> None:
    """`main` mends one file, and `side`, which does not know that, changes another."""
    commit(repository, "mend", schedule="asks again")
    git(repository, "checkout", "-q", "side")
    commit(repository, "another thing", runs="two")


def test_a_merge_that_undoes_a_mend_is_named_and_one_that_keeps_it_is_not(repository: Path) -> None:
    mended(repository)
    merge(repository, "merged", schedule="asks once")
    (line,) = returned(repository)
    assert line.startswith("schedule has older bytes again since")
    assert line.endswith("merged")


def test_a_merge_that_keeps_both_sides_is_not_named(repository: Path) -> None:
    mended(repository)
    merge(repository, "merged")
    commit(repository, "more", schedule="asks again and again", table="b")
    assert returned(repository) == []


def test_a_commit_that_copies_an_older_file_over_a_mend_is_named(repository: Path) -> None:
    commit(repository, "mend", schedule="asks again")
    commit(repository, "a boundary", schedule="asks once", table="b")
    assert [line.partition(" ")[0] for line in returned(repository)] == ["schedule"]


def test_a_file_that_was_removed_and_is_there_again_is_named(repository: Path) -> None:
    (repository / "table").unlink()
    commit(repository, "removed")
    commit(repository, "brought back by mistake", table="a")
    assert [line.partition(" ")[0] for line in returned(repository)] == ["table"]


@pytest.mark.parametrize("later", [False, True])
def test_what_a_message_says_is_meant_is_not_named_and_other_files_are(repository: Path, later: bool) -> None:
    trailer = f"\n\n{TRAILER}: schedule\n{TRAILER}: runs"
    commit(repository, "mend", schedule="asks again", runs="two", table="b")
    commit(repository, "undone" + trailer * (not later), schedule="asks once", runs="one", table="a")
    commit(repository, "said" + trailer * later)
    assert [line.partition(" ")[0] for line in returned(repository)] == ["table"]
    commit(repository, "mended", schedule="asks again")
    assert any(line.startswith("schedule") for line in returned(repository))  # nothing is meant for ever


def test_what_one_side_returned_knowingly_is_named_there_alone(repository: Path) -> None:
    commit(repository, "mend", schedule="asks again")
    git(repository, "branch", "-f", "side", "main")
    commit(repository, f"undone\n\n{TRAILER}: schedule", schedule="asks once")
    git(repository, "checkout", "-q", "side")
    commit(repository, "another thing", runs="two")
    merge(repository, "merged")
    assert returned(repository) == []


def test_only_commits_that_are_not_upstream_yet_are_looked_at(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    commit(repository, "mend", schedule="asks again")
    commit(repository, "undone", schedule="asks once")
    clone = tmp_path_factory.mktemp("clone")
    git(clone, "clone", "-q", str(repository), ".")
    for name, value in (("user.name", "bo"), ("user.email", "bo@example.com")):
        git(clone, "config", name, value)
    assert len(returned(clone)) == 1  # all is pushed: the newest
    commit(clone, "more", runs="two")
    assert returned(clone) == []
    commit(clone, "undone too", schedule="asks again")  # whatever the age of the bytes
    assert [line.partition(" ")[0] for line in returned(clone)] == ["schedule"]

"""Meta files: what each file was distorted by, one line a file.

    PATH TYPE:LEVEL [TYPE:LEVEL …]

The steps stand in the order in which they were applied (DeeperForensics-1.0, lists of manipulated videos). A
line of a path alone says that nothing was done.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from updater.distortions.distortion import DistortionError, Step
from updater.distortions.methods import step

_PATH_AND_STEP = re.compile(r"(.*\S)\s+(\w+:-?\w*)", re.ASCII)


def meta_line(path: str, steps: Sequence[Step]) -> str:
    """Write one line, without its end. Raises DistortionError where the path could not be read back."""
    line = " ".join([path, *map(str, steps)])
    if not path or not path.isprintable() or path != path.strip() or _split(line)[0] != path:
        raise DistortionError(f"{path!r} cannot be named in a meta file: rename it")
    return line


def parse_line(line: str) -> tuple[str, tuple[Step, ...]]:
    """Read one line: the path and its steps. Raises DistortionError for a step that is none."""
    path, named = _split(line.strip())
    steps = []
    for key in named:
        name, _, level = key.partition(":")
        # Longer numbers than these, Python refuses to read.
        if not level.isdecimal() or len(level) > 9:
            raise DistortionError(f"{key[:40]} has no level")
        steps.append(step(name, int(level)))
    return path, tuple(steps)


def read_meta(file: Path) -> dict[str, tuple[Step, ...]]:
    """Read a meta file: the steps by path, in the file's order; empty lines are skipped.

    Raises DistortionError, which names the line, and OSError where the file cannot be read.
    """
    by_path: dict[str, tuple[Step, ...]] = {}
    try:
        lines = file.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DistortionError(f"{file} is no text") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            path, steps = parse_line(line)
            if by_path.setdefault(path, steps) != steps:
                raise DistortionError(f"{path} was named before, with other distortions")
        except DistortionError as error:
            raise DistortionError(f"{file}, line {number}: {error}") from error
    return by_path


def steps_for(path: str, metas: Mapping[str, tuple[Step, ...]]) -> tuple[Step, ...]:
    """Find the steps of a file by its path below the folder.

    A meta file may name it from a folder above: the lines' paths that end with it count too. Raises
    DistortionError where no line names the file, or several with other steps.
    """
    if path in metas:
        return metas[path]
    fitting = {steps for named, steps in metas.items() if named.endswith(f"/{path}")}
    if len(fitting) != 1:
        what = "several lines of the meta file name it" if fitting else "no line of the meta file names it"
        raise DistortionError(f"{path}: {what}")
    (steps,) = fitting
    return steps


def missing(metas: Iterable[str], files: Iterable[str]) -> list[str]:
    """Return the paths of a meta file that are none of these files' and end with none of theirs."""
    there = set(files)
    return [named for named in metas if not there.intersection(_ends(named))]


def _ends(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.partition("/")[2]


def _split(line: str) -> tuple[str, list[str]]:
    """Part a line into its path, which may have blanks, and its steps."""
    steps: list[str] = []
    while match := _PATH_AND_STEP.fullmatch(line):
        line, last = match.groups()
        steps.insert(0, last)
    return line, steps

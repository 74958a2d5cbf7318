"""The loop of every benchmark: shared data is prepared once, each seed measured in its folder."""

import hashlib
import importlib.metadata
import json
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import JsonValue

from updater.benchmark.report.outcome import Outcome
from updater.benchmark.report.run_folder import RUN_FILE, ResultsError, Run, load_run, save_run
from updater.progress import Progress, with_prefix
from updater.training.processes import is_first

_PACKAGES = ("numpy", "torch", "torchvision", "timm", "scikit-learn", "pytorch-ood", "faiss-cpu", "av")
_ROOMS = ("ingest", "detector", "memory", "updater")
T = TypeVar("T")


@dataclass(frozen=True)
class Seed:
    """Where one seed is measured."""

    number: int
    folder: Path
    """the run's"""
    parts: Path
    """for what it goes on from when it was interrupted; of this seed, data and options alone"""
    progress: Progress


@dataclass(frozen=True)
class Benchmark(Generic[T]):
    """A benchmark: all inputs of a run but its seed, and its two steps."""

    name: str
    data: str
    data_digest: str
    options: Mapping[str, JsonValue]
    words: tuple[str, ...]
    """what tables compare, for the name of a folder"""
    prepare: Callable[[Progress], T]
    """makes what the seeds share; not called where every seed is done"""
    measure: Callable[[T, Seed], Outcome]
    task: str = ""
    is_done: Callable[[Outcome], bool] = lambda outcome: True
    """whether a finished run has all that is asked for; else it goes on from its parts, if it keeps them"""
    keeps_parts: bool = False

    @property
    def default_name(self) -> str:
        """A name for a folder of runs: the compared options, and a digest of all inputs."""
        digest = _digest(self.data_digest, self.options, code())[:8]
        return "-".join([self.name, *self.words, digest]).replace(":", "-")


def run_seeds(
    benchmark: Benchmark[T],
    seeds: Sequence[int],
    folder: Path,
    *,
    command: tuple[str, ...],
    device: str,
    progress: Progress,
) -> Iterator[Run]:
    """Run the seeds that the folder does not hold yet; yield every seed's run.

    Of several processes that train together the first writes. Raises ResultsError where the folder holds a
    run of other data or options, what the benchmark raises, and OSError.
    """
    for seed in seeds:
        _check(folder / f"seed-{seed}", benchmark)
    prepared: list[T] = []
    for seed in seeds:
        place = folder / f"seed-{seed}"
        if (place / RUN_FILE).is_file():
            run = load_run(place)
            if benchmark.is_done(run.outcome):
                yield run
                continue
        prepared = prepared or [benchmark.prepare(progress)]
        parts = place / "parts" / _digest(benchmark.data_digest, benchmark.options, seed, code())[:16]
        parts.mkdir(parents=True, exist_ok=True)

        say = with_prefix(progress, f"seed {seed}")
        began = time.monotonic()
        outcome = benchmark.measure(prepared[0], Seed(seed, place, parts, say))
        run = Run(
            benchmark=benchmark.name,
            task=benchmark.task,
            data=benchmark.data,
            data_digest=benchmark.data_digest,
            command=command,
            options=dict(benchmark.options),
            versions=_versions(),
            device=device,
            seed=seed,
            seconds=time.monotonic() - began,
            outcome=outcome,
        )
        if is_first():
            save_run(place, run)
            if not benchmark.keeps_parts:
                shutil.rmtree(place / "parts")
        yield run


def _check(place: Path, benchmark: Benchmark[T]) -> None:
    """Raise ResultsError where a seed's folder has a run of other data, options or code: else it is lost."""
    if not (place / RUN_FILE).is_file():
        return
    run = load_run(place)
    # Both as JSON has them, where a tuple is a list.
    recorded = {**run.options, "code": run.versions.get("forgewatch", "not on record")}
    other = list(_differing(recorded, json.loads(json.dumps({**benchmark.options, "code": code()}))))
    if run.data_digest != benchmark.data_digest:
        other.insert(0, f"other data ({run.data})")
    if other:
        raise ResultsError(f"{place} holds a run of {', '.join(other)}: name another folder with --out")


def _differing(
    there: Mapping[str, JsonValue], options: Mapping[str, JsonValue], above: str = ""
) -> Iterator[str]:
    """Tell each value that is there and not asked for, by its whole name."""
    for name in dict.fromkeys([*options, *there]):
        old, new, full = there.get(name), options.get(name), above + name
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differing(old, new, f"{full}.")
        elif old != new:
            yield f"{full} {old}" if name in there else f"no {full} on record"


@cache
def code() -> str:
    """Return the package's version, and the start of the SHA-256 over every module that a run may use."""
    files = sorted(path for room in _ROOMS for path in (Path(__file__).parents[3] / room).rglob("*.py"))
    return f"{importlib.metadata.version('forgewatch')}+{_digest(*(path.read_text() for path in files))[:12]}"


def _versions() -> dict[str, str]:
    there = {package.name: package.version for package in importlib.metadata.distributions()}
    own = {"python": platform.python_version(), "forgewatch": code()}
    return own | {name: there[name] for name in _PACKAGES if name in there}  # FAISS for GPUs has another name


def _digest(*facts: object) -> str:
    """Return the SHA-256 of JSON values, hexadecimal."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=dict).encode()).hexdigest()

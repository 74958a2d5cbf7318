"""The project's own forged stream as tasks in CDDB's form: it needs no data, and is the same every time."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from updater.benchmark.data.cache import Piece, fetch, identity
from updater.benchmark.data.crops import CropReader, join, piece_of
from updater.benchmark.data.tasks import FAKE, Stream, Task
from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.stream import FROZEN, REAL, make_many
from updater.data.training_data import LabelledCrops

_SEED = 0  # the stream's, not a learner's
# The stream's splits share no photograph and no scene, which is what a task's parts must not do either.
_SPLITS = {"train": "train", "calibration": "stream", "test": "after"}


def load_synthetic(
    reader: CropReader,
    *,
    families: Sequence[str] = tuple(FAMILIES),
    train: int = 60,
    calibration: int = 40,
    test: int = 60,
) -> Stream:
    """Make the stream: each family is a task of NAME/real and NAME/fake, of so many items each in each part.

    A family's reals are its own, whatever families are asked for and in whatever order. Raises KeyError for
    an unknown family, CacheError and SandboxUnavailableError. A script that calls this needs a main guard.
    """
    counts = {"train": train, "calibration": calibration, "test": test}
    parts = {part: _part(reader, families, part, count) for part, count in counts.items()}
    tasks = []
    for number, name in enumerate(families):
        own = {
            part: items.take(range(2 * counts[part] * number, 2 * counts[part] * (number + 1)))
            for part, items in parts.items()
        }
        tasks.append(Task(name, **own))
    return Stream("synthetic", tuple(tasks), plan=reader.plan)


def _part(reader: CropReader, families: Sequence[str], part: str, count: int) -> LabelledCrops:
    """One part of all tasks, a task after the other, reals first."""
    # Reals have one numbering: each family takes every len(FAMILIES)-th, from its own place on.
    places, stride = {name: place for place, name in enumerate(FAMILIES)}, len(FAMILIES)
    wanted, classes = [], []
    for name in families:
        wanted += [(REAL, places[name] + stride * index) for index in range(count)]
        wanted += [(name, index) for index in range(count)]
        classes += [f"{name}/{REAL}"] * count + [f"{name}/{FAKE}"] * count
    items = _make_items(reader, part, _SPLITS[part], wanted, classes)
    return replace(items, sources=tuple(name.rpartition("/")[0] for name in classes))


def load_library(reader: CropReader, split: str, reals: int, forgeries: int) -> LabelledCrops:
    """Make the first media of one of the stream's splits: so many reals, and so many of each family.

    Their classes are "real" and the families' names, as in the demonstration. Raises what `load_synthetic`
    raises.
    """
    counts = {REAL: reals, **dict.fromkeys(FAMILIES, forgeries)}
    wanted = [(family, index) for family, count in counts.items() for index in range(count)]
    return _make_items(reader, f"library {split}", split, wanted, [family for family, _ in wanted])


def _make_items(
    reader: CropReader, part: str, split: str, wanted: Sequence[tuple[str, int]], classes: Sequence[str]
) -> LabelledCrops:
    """Make the wanted media (family, index) of a split, or fetch them; their sources are empty."""
    names = [f"{part}/{family}/{index}" for family, index in wanted]

    def make() -> Piece:
        progress = partial(reader.progress, f"make {part}")
        samples = list(make_many(_SEED, split, wanted, processes=reader.processes, progress=progress))
        decoded = list(reader.decode((sample.name, sample.data) for sample in samples))
        groups = [sample.group for sample in samples]
        return piece_of([digest for digest, _ in decoded], groups, [item for _, item in decoded])

    key = identity(reader.plan, reader.picture, [f"{FROZEN}/{_SEED}/{name}" for name in names])
    piece = fetch(reader.cache, key, make)
    assert piece is not None
    return join([piece], names, classes, "", reader.plan)

"""OpenCIL's layout, and media of one's own by source.

OpenCIL's is classes under DIR/id in steps, and any number of outlier sets under DIR/ood: Miao et al. 2024,
"OpenCIL: Benchmarking Out-of-Distribution Detection in Class-Incremental Learning", section 3.3. A class lies
at id/CLASS/{train,test}, at id/{train,test}/CLASS, or at id/CLASS with no split of its own. An outlier set
lies at ood/near/NAME or ood/far/NAME, as the paper's are near or far, or at ood/NAME. Its files are images
that stand alone: each is a group, whatever folder below that it lies in. Or lists name the files, as the
released ones do: DIR/benchmark_imglist/ID/{train,test}_ID.txt has the classes, val_ID.txt, if it is there,
those held back, each other test_NAME.txt is an outlier set, and a line is PATH LABEL, of a file below
DIR/images_classic or DIR/images_largescale.

By source it is DIR/SOURCE/…/{0_real,1_fake}/[GROUP/]FILE; CDDB's layout is one of these.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np

from memory.records import REAL
from updater.benchmark.data.crops import CropReader, MediaFile
from updater.benchmark.data.tasks import FAKE, Distance, OutlierSet, Stream, Task, hold_back, is_real, shuffle
from updater.data.layouts.entries import LayoutError
from updater.data.layouts.listed import below, is_there, lines_of, media_in, subfolders
from updater.data.training_data import LabelledCrops

_ORDER_SEED, _TEST_SHARE = 1993, 0.2
_PARTS = ("train", "test")
_LISTED = (*_PARTS, "val")
_IMGLISTS, _ROOTS = "benchmark_imglist", ("images_classic", "images_largescale", ".")
_NEAR = ("cifar10", "tin", "species", "inaturalist", "openimage_o", "imagenet_o")
"""its released configurations' near sets, for CIFAR-100 and for ImageNet"""
Outliers = list[tuple[str, Distance | None, list[MediaFile]]]
_DISTANCES: tuple[Distance, ...] = get_args(Distance)
_LAYOUTS = (
    "id/CLASS/{train,test}, id/{train,test}/CLASS or id/CLASS, each with media, and"
    " ood/near/NAME, ood/far/NAME or ood/NAME with media"
)


def in_steps(
    classes: Sequence[str], base: int, increment: int, order_seed: int
) -> tuple[tuple[str, ...], ...]:
    """Share classes out: `base` in the first step, `increment` in each that follows, the rest in the last.

    They are shuffled first, from their sorted names, by numpy's legacy generator: with the seed of OpenCIL's
    published configurations, 1993, CIFAR-100's steps are the published ones; there base and increment are
    10. Raises ValueError for a step of no class.
    """
    if base < 1 or increment < 1:
        raise ValueError("a step needs at least one class")
    shuffled = [str(name) for name in np.random.RandomState(order_seed).permutation(sorted(classes))]
    starts = [0, *range(base, len(shuffled), increment)]
    return tuple(tuple(shuffled[a:b]) for a, b in zip(starts, [*starts[1:], len(shuffled)], strict=True))


def load_folders(
    folder: Path,
    reader: CropReader,
    *,
    base: int = 10,
    increment: int = 10,
    imglists: str = "",
    calibration_share: float = 0.1,
) -> Stream:
    """Read DIR/id as tasks of `in_steps` classes each, and DIR/ood as outliers that grow with the steps.

    imglists: whose lists are read instead, where there are any; may be left out where there are one data
    set's. A fifth is held back from classes without a split of their own, then calibration_share from what is
    left to train on, both by `hold_back`. Which outliers come first is drawn. Raises LayoutError and what
    `CropReader.read` raises.
    """
    listed = (folder / _IMGLISTS).is_dir()
    by_class, sets = _imglists(folder, imglists) if listed else (_classes(folder), _outlier_sets(folder))
    known = ([file for of in by_class.values() for file in of.get(part, [])] for part in _LISTED)
    reader.check(*known, [file for _, _, files in sets for file in files])
    tasks = []
    for number, names in enumerate(in_steps(list(by_class), base, increment, _ORDER_SEED), 1):
        task = f"step-{number}"
        parts = {part: [f for name in names for f in by_class[name].get(part, [])] for part in _LISTED}
        train = reader.read(f"read {task}/train", task, parts["train"])
        if parts["test"]:
            test = reader.read(f"read {task}/test", task, parts["test"])
        else:
            train, test = hold_back(train, _TEST_SHARE, 0)
        kept, held = hold_back(train, calibration_share, 0)
        if parts["val"]:
            kept, held = train, reader.read(f"read {task}/val", task, parts["val"])
        tasks.append(Task(task, kept, held, test))
    outliers = []
    for name, distance, files in sets:
        items = reader.read(f"read outliers {name}", name, files)
        outliers.append(OutlierSet(name, shuffle(items, 0), distance=distance))
    return Stream("opencil", tuple(tasks), tuple(outliers), reader.plan, folder=folder)


def _imglists(folder: Path, wanted: str) -> tuple[dict[str, dict[str, list[MediaFile]]], Outliers]:
    """Return the files of each class by part, by its number, and those of the outlier sets."""
    top = folder / _IMGLISTS
    there = [path for path in subfolders(top) if (path / f"train_{path.name}.txt").is_file()]
    chosen = [path for path in there if path.name == wanted] or there
    if len(chosen) != 1:
        names = ", ".join(path.name for path in there)
        raise LayoutError(f"{top} has the lists of {names or 'nothing'}: name one of them by --sequence")
    own = chosen[0].name
    by_class: dict[str, dict[str, list[MediaFile]]] = {}
    for part in _LISTED:
        path = chosen[0] / f"{part}_{own}.txt"
        for label, file in _in_list(folder, path) if path.is_file() else ():
            name = f"{label:04d}"
            by_class.setdefault(name, {}).setdefault(part, []).append(replace(file, family=name))
    if lone := [name for name, of in by_class.items() if not of.keys() >= set(_PARTS)]:
        raise LayoutError(f"{chosen[0]}: class {lone[0]} has no train or no test: take lists of one release")
    sets: Outliers = []
    for path in sorted(chosen[0].glob("test_*.txt")):
        name = path.stem.removeprefix("test_")
        if name != own:
            files = [replace(file, family=name) for _, file in _in_list(folder, path)]
            sets.append((name, "near" if name in _NEAR else "far", files))
    if not sets or not all(files for _, _, files in sets):
        raise LayoutError(f"{chosen[0]} lists no outlier set, or an empty one: it needs test_NAME.txt")
    return by_class, sets


def _in_list(folder: Path, path: Path) -> Iterator[tuple[int, MediaFile]]:
    """Yield the label and the file of each line. Raises LayoutError for a file that is not there."""
    for line in lines_of(path):
        listed, _, label = line.rpartition(" ")
        places = (below(folder / root, listed) for root in _ROOTS)
        file = next((place for place in places if place is not None and is_there(place)), None)
        if file is None or not label.removeprefix("-").isdecimal():
            raise LayoutError(
                f"{path} names {line[:80]!r}: no file below {' or '.join(_ROOTS[:2])} with a label: unpack"
                " lists and pictures of one release"
            )
        yield int(label), MediaFile(file, file.relative_to(folder).as_posix(), "")


def _outlier_sets(folder: Path) -> Outliers:
    """Return the sets, near ones first, then far ones, then those that are neither."""
    top = folder / "ood"
    places: list[tuple[Path, Distance | None]] = []
    for distance in _DISTANCES:
        within = subfolders(top / distance)
        if (top / distance).is_dir() and not within:
            raise LayoutError(f"{top / distance} holds no outlier set: {folder} needs {_LAYOUTS}")
        places += [(path, distance) for path in within]
    places += [(path, None) for path in subfolders(top) if path.name not in _DISTANCES]
    if not places:
        raise LayoutError(f"{top} holds no outlier set: {folder} needs {_LAYOUTS}")
    names = Counter(place.name for place, _ in places)
    if twice := sorted(name for name, count in names.items() if count > 1):
        raise LayoutError(f"{top} holds {twice[0]} more than once: give each outlier set a name of its own")
    return [(place.name, distance, _files(folder, place.name, place, "media")) for place, distance in places]


def _classes(folder: Path) -> dict[str, dict[str, list[MediaFile]]]:
    """Return the files of each class by part; all under "train" where the classes have no split."""
    top = folder / "id"
    names = [path.name for path in subfolders(top)]
    if set(names) == set(_PARTS):
        places = {part: {path.name: path for path in subfolders(top / part)} for part in _PARTS}
        for part, other in (_PARTS, _PARTS[::-1]):
            if alone := sorted(places[part].keys() - places[other].keys()):
                raise LayoutError(
                    f"{top / part / alone[0]} has no {other}: {top / other} needs the same classes"
                )
        by_class = {name: {part: places[part][name] for part in _PARTS} for name in places["train"]}
    elif any((top / name / part).is_dir() for name in names for part in _PARTS):
        by_class = {name: {part: top / name / part for part in _PARTS} for name in names}
    else:
        by_class = {name: {"train": top / name} for name in names}
    if not by_class:
        raise LayoutError(f"{top} holds no classes: {folder} needs {_LAYOUTS}")
    return {
        name: {part: _files(folder, name, place) for part, place in parts.items()}
        for name, parts in by_class.items()
    }


def _files(folder: Path, name: str, place: Path, needs: str = _LAYOUTS) -> list[MediaFile]:
    return [MediaFile(path, path.relative_to(folder).as_posix(), name) for path in media_in(place, needs)]


_KINDS = {"0_real": REAL, "real": REAL, "1_fake": FAKE, "fake": FAKE}
_LAYOUT = "SOURCE/0_real and SOURCE/1_fake with media, of which one source may lack one"


def load_sources(folder: Path, reader: CropReader) -> list[LabelledCrops]:
    """Read each file below a 0_real (or real) or 1_fake (or fake) of a source, as SOURCE/real or SOURCE/fake.

    Each source is a part of its own. The folders between a kind and its file are the file's group, within its
    source; else its own bytes are. Raises LayoutError where there are no reals or no fakes, and what
    `CropReader.read` raises.
    """
    if not folder.is_dir():
        raise LayoutError(f"{folder} is no folder: name one that holds {_LAYOUT}")
    by_source = {of.name: files for of in subfolders(folder) if (files := list(_of_kinds(folder, of)))}
    every = [file for files in by_source.values() for file in files]
    reals = [file for file in every if is_real(file.family)]
    if len(reals) in (0, len(every)):
        raise LayoutError(f"{folder} holds no reals or no fakes: it needs {_LAYOUT}")
    reader.check(reals, [file for file in every if not is_real(file.family)])
    return [reader.read(f"read {source}", source, files) for source, files in by_source.items()]


def _of_kinds(folder: Path, source: Path) -> Iterator[MediaFile]:
    """Yield a source's files below a folder that says their class, each with that and its group."""
    for path in media_in(source, _LAYOUT):
        above = path.relative_to(source).parts[:-1]
        place = next((place for place, part in enumerate(above) if part in _KINDS), None)
        if place is not None:
            within, family = above[place + 1 :], f"{source.name}/{_KINDS[above[place]]}"
            group = "/".join((source.name, *within)) if within else None
            yield MediaFile(path, path.relative_to(folder).as_posix(), family, group)

"""CDDB's layout: TASK/{train,val}/[CLASS/]{0_real,1_fake}/FILE, and the sequences of its paper.

Li et al. 2023, "A Continual Deepfake Detection Benchmark: Dataset, Methods, and Essentials", section 3.2. Its
FaceForensics++ and WildDeepfake are frames of videos (`clips`).
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from memory.records import REAL
from updater.benchmark.data.clips import clip_of
from updater.benchmark.data.crops import CropReader
from updater.benchmark.data.files import MediaFile, media_in, subfolders
from updater.benchmark.data.tasks import (
    FAKE,
    LayoutError,
    OutlierSet,
    Stream,
    Task,
    hold_back,
    shuffled,
)
from updater.data.training_data import LabelledCrops

_KINDS = {"0_real": REAL, "1_fake": FAKE}

# The paper's names in lower case, each with the folder of the published data first where they differ:
# there FaceForensics++ is called deepfake, WildDeepfake wild, and StarGAN stargan_gf.
_FACEFORENSICS = ("deepfake", "faceforensics", "faceforensics++")
_WILD = ("wild", "wilddeepfake")
_STARGAN = ("stargan_gf", "stargan")
SEQUENCES: dict[str, tuple[tuple[str, ...], ...]] = {
    "easy": (("gaugan",), ("biggan",), ("cyclegan",), ("imle",), _FACEFORENSICS, ("crn",), _WILD),
    "hard": (("gaugan",), ("biggan",), _WILD, ("whichfaceisreal",), ("san",)),
    "long": (
        ("gaugan",),
        ("biggan",),
        ("cyclegan",),
        ("imle",),
        _FACEFORENSICS,
        ("crn",),
        _WILD,
        ("glow",),
        _STARGAN,
        ("stylegan",),
        ("whichfaceisreal",),
        ("san",),
    ),
}
"""EASY, HARD and LONG of section 3.2: for each task the names that its folder may have"""


def sequence_of(folder: Path, sequence: str) -> tuple[str, ...]:
    """Return the task folders of "easy", "hard", "long" or "NAME,NAME,…", in order.

    Raises LayoutError where one of them is not in the folder, or named twice.
    """
    there = _tasks_in(folder)
    wanted = SEQUENCES.get(sequence) or [(name.strip(),) for name in sequence.split(",") if name.strip()]
    found = [next((name for name in names if name in there), None) for names in wanted]
    missing = [names[0] for names, name in zip(wanted, found, strict=True) if name is None]
    if missing or not found:
        raise LayoutError(
            f"{folder} lacks {', '.join(missing) or 'any task'} of the sequence {sequence!r}; it has"
            f" {', '.join(there)}: name tasks that are there, separated by commas"
        )
    names = [name for name in found if name is not None]
    if len(set(names)) < len(names):
        raise LayoutError(f"the sequence {sequence!r} names a task twice: name each once")
    return tuple(names)


def load_cddb(
    folder: Path, sequence: str, reader: CropReader, *, calibration_share: float = 0.25, seed: int = 0
) -> Stream:
    """Read the tasks of a sequence; object classes are merged into TASK/real and TASK/fake.

    `train` gives training and, by `hold_back`, calibration: with the default share three of twelve shots.
    `val` is the test, as in the paper. seed decides only what is held back. Raises LayoutError and what
    `CropReader.read` raises.
    """
    names = sequence_of(folder, sequence)
    files = {(name, part): list(_files(folder, name, part)) for name in names for part in ("train", "val")}
    tasks = []
    for name in names:
        train = reader.read(f"read {name}/train", name, files[name, "train"])
        kept, held = hold_back(train, calibration_share, seed)
        tasks.append(Task(name, kept, held, reader.read(f"read {name}/val", name, files[name, "val"])))
    return Stream(f"cddb-{sequence}", tuple(tasks), plan=reader.plan)


def with_unseen_families(stream: Stream, folder: Path, reader: CropReader, seed: int = 0) -> Stream:
    """Return the stream with every family that is not yet learnt as outliers, by its test items.

    A later task is an outlier, reals and fakes alike, until its own step; a family of the folder that is
    no task stays one, and grows in an order drawn by the seed. Raises what `load_cddb` raises.
    """
    later = [OutlierSet(t.name, t.test, until_step=step) for step, t in enumerate(stream.tasks) if step]
    known = {task.name for task in stream.tasks}
    never = [
        OutlierSet(name, shuffled(_test_items(folder, name, reader), seed))
        for name in _tasks_in(folder)
        if name not in known
    ]
    return replace(stream, outliers=(*stream.outliers, *later, *never))


def _test_items(folder: Path, name: str, reader: CropReader) -> LabelledCrops:
    return reader.read(f"read {name}/val", name, list(_files(folder, name, "val")))


def _tasks_in(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise LayoutError(f"{folder} is no folder: name one that holds TASK/{{train,val}}/{{0_real,1_fake}}")
    names = [path.name for path in subfolders(folder) if (path / "train").is_dir() or (path / "val").is_dir()]
    if not names:
        raise LayoutError(f"{folder} holds no TASK/{{train,val}}/[CLASS/]{{0_real,1_fake}}: lay it out so")
    return names


def _files(folder: Path, task: str, part: str) -> Iterator[MediaFile]:
    top = folder / task / part
    if not top.is_dir():
        raise LayoutError(f"{top} is missing: each task needs train and val")
    plain = any((top / name).is_dir() for name in _KINDS)
    for place in [top] if plain else subfolders(top) or [top]:
        for name, kind in _KINDS.items():
            found = media_in(place / name, "0_real and 1_fake, or CLASS/0_real and CLASS/1_fake, with media")
            for path in found:
                clip = clip_of(
                    PurePosixPath(path.relative_to(place / name)),
                    of_videos=task in (*_FACEFORENSICS, *_WILD),
                    face_swaps=task in _FACEFORENSICS,
                )
                group = None if clip is None else "/".join([task, *place.relative_to(top).parts, clip])
                yield MediaFile(path, path.relative_to(folder).as_posix(), f"{task}/{kind}", group)

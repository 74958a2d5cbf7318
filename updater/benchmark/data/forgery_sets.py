"""Published sets as streams: one forgery family after another, each beside reals of its own.

CDDB's layout brings its tasks; the sequences are of Li et al. 2023, "A Continual Deepfake Detection
Benchmark: Dataset, Methods, and Essentials", section 3.2. Of any other layout each family is a task."""

from pathlib import Path

from memory.records import REAL
from updater.benchmark.data.crops import CropReader, MediaFile
from updater.benchmark.data.tasks import FAKE, OutlierSet, Stream, Task, hold_back, shuffle
from updater.data.layouts.cddb import FACEFORENSICS, WILD, files_of, tasks_in
from updater.data.layouts.entries import LayoutError, Listing
from updater.data.layouts.layouts import family_of, pictures_of
from updater.data.layouts.listed import reported_split

_PARTS = ("train", "test")
# The paper's names in lower case, each with the folder of the published data first where they differ:
# there FaceForensics++ is called deepfake, WildDeepfake wild, and StarGAN stargan_gf.
_EASY = (("gaugan",), ("biggan",), ("cyclegan",), ("imle",), FACEFORENSICS, ("crn",), WILD)
_LAST = (("whichfaceisreal",), ("san",))
SEQUENCES: dict[str, tuple[tuple[str, ...], ...]] = {
    "easy": _EASY,
    "hard": (*_EASY[:2], WILD, *_LAST),
    "long": (*_EASY, ("glow",), ("stargan_gf", "stargan"), ("stylegan",), *_LAST),
}
"""EASY, HARD and LONG of section 3.2: for each task the names that its folder may have"""


def sequence_of(folder: Path, sequence: str) -> tuple[str, ...]:
    """Return the task folders of "easy", "hard", "long" or "NAME,NAME,…", in order.

    Raises LayoutError where one of them is not in the folder, or named twice.
    """
    there = tasks_in(folder)
    wanted = SEQUENCES.get(sequence) or [(name.strip(),) for name in sequence.split(",") if name.strip()]
    picked = [next((name for name in names if name in there), None) for names in wanted]
    missing = [names[0] for names, name in zip(wanted, picked, strict=True) if name is None]
    if missing or not picked:
        raise LayoutError(
            f"{folder} lacks {', '.join(missing) or 'any task'} of the sequence {sequence!r}; it has"
            f" {', '.join(there)}: name tasks that are there, separated by commas"
        )
    names = [name for name in picked if name is not None]
    if len(set(names)) < len(names):
        raise LayoutError(f"the sequence {sequence!r} names a task twice: name each once")
    return tuple(names)


def load_cddb(
    folder: Path, sequence: str, reader: CropReader, *, unseen: bool = False, calibration_share: float = 0.25
) -> Stream:
    """Read the tasks of a sequence; object classes are merged into TASK/real and TASK/fake.

    `train` gives training and, by `hold_back`, calibration: with the default share three of twelve shots.
    `val` is the test, as in the paper. unseen: every family that is not yet learnt is an outlier, by its test
    items: a later task until its own step, reals and fakes alike; a family of the folder that is no task
    stays one, and grows in an order that is drawn. Raises LayoutError and what `CropReader.read` raises.
    """
    names = sequence_of(folder, sequence)
    others = [name for name in tasks_in(folder) if unseen and name not in names]
    files = {(name, "train"): _files(folder, name, "train") for name in names}
    files |= {(name, "val"): _files(folder, name, "val") for name in (*names, *others)}
    reader.check(
        *([f for (_, of), own in files.items() if of == part for f in own] for part in ("train", "val"))
    )
    tasks = []
    for name in names:
        train = reader.read(f"read {name}/train", name, files[name, "train"])
        kept, held = hold_back(train, calibration_share, 0)
        tasks.append(Task(name, kept, held, reader.read(f"read {name}/val", name, files[name, "val"])))
    later = [OutlierSet(t.name, t.test, until_step=step) for step, t in enumerate(tasks) if step and unseen]
    never = [
        OutlierSet(name, shuffle(reader.read(f"read {name}/val", name, files[name, "val"]), 0))
        for name in others
    ]
    return Stream(f"cddb-{sequence}", tuple(tasks), (*later, *never), reader.plan, folder=folder)


def _files(folder: Path, task: str, part: str) -> list[MediaFile]:
    """Return a task's files, with their classes TASK/real and TASK/fake."""
    files = []
    for entry in files_of(folder, task, part):
        name, kind = entry.path.relative_to(folder).as_posix(), FAKE if entry.label else REAL
        clip = entry.group if entry.group != name else None
        files.append(MediaFile(entry.path, name, f"{task}/{kind}", clip))
    return files


def load_families(listing: Listing, reader: CropReader, *, calibration_share: float = 0.25) -> Stream:
    """Read a listing's families as tasks, in the order of the listing.

    The reals' groups are dealt out to the tasks in turn, so that no real is in two. What the set reports by
    is the test; of the rest, `hold_back` keeps some for calibration. Raises LayoutError where the set has
    nothing to test on, and what `CropReader.check` and `read` raise.
    """
    reported = reported_split(listing)
    if reported is None:
        raise LayoutError(
            f"{listing.name} has no labelled test or validation beside its training: unpack one"
        )
    names = list(dict.fromkeys(family_of(entry) for entry in listing.entries if entry.label))
    if not names:
        raise LayoutError(f"{listing.name} has no forgeries: unpack some")
    real_groups = sorted({entry.group for entry in listing.entries if not entry.label})
    dealt = {group: names[number % len(names)] for number, group in enumerate(real_groups)}
    files: dict[str, dict[str, list[MediaFile]]] = {part: {name: [] for name in names} for part in _PARTS}
    for entry in listing.entries:
        name = family_of(entry) if entry.label else dealt[entry.group]
        own = files[_PARTS[entry.split == reported]][name]
        kind = f"{name}/{FAKE if entry.label else REAL}"
        own += [MediaFile(path, str(path), kind, entry.group) for path in pictures_of(entry)]
    reader.check(*([file for own in files[part].values() for file in own] for part in _PARTS))
    tasks = []
    for name in names:
        train, test = (reader.read(f"read {name}/{part}", name, files[part][name]) for part in _PARTS)
        tasks.append(Task(name, *hold_back(train, calibration_share, 0), test))
    return Stream(listing.name, tuple(tasks), plan=reader.plan, notes=listing.notes)

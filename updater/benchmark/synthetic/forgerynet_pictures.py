"""The synthetic stream's pictures, forged in part, as a tree in ForgeryNet's layout.

Families stand for approaches: 1 to 4 for those that replace an identity, 5 to 8 for those that leave it.
Reals are photographs (16) and scenes by three groups of cameras (17 to 19). The splits of the stream are
Training, Validation and Test. `updater.benchmark.data.forgerynet` reads the tree back, under the names of the
approaches.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath

from PIL import Image

from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.local_stills import LocalSample, make_locals, numbers_of
from updater.benchmark.synthetic.stream import REAL

DIRECTORIES: dict[str, int] = {
    "blended": 1,
    "inpainted": 2,
    "upsampled": 3,
    "autoencoded": 4,
    "recompressed": 5,
    "sharpened": 6,
    "periodic": 7,
    "smoothed": 8,
}
# Split of the stream → part, where its pictures begin, and where the truth of them does.
_PARTS = {
    "train": ("Training", "train_release", "spatial_localize/train_mask_release"),
    "stream": ("Validation", "val_perturb_release", "spatial_localize"),
    "after": ("Test", "test_release", "spatial_localize/test_mask_release"),
}
COUNTS: dict[str, int] = {"train": 2000, "stream": 300, "after": 300}
_REPLACING = 6
"""what stands in ForgeryNet's directories up to this one is of its class 2 of three, so the columns say so"""
_PHOTOGRAPHS, _FIRST_CAMERAS, _CAMERAS_OF_A_GROUP = 16, 17, 3


def write_forgerynet_pictures(
    folder: Path,
    seed: int = 0,
    counts: Mapping[str, int] = COUNTS,
    *,
    families: Iterable[str] = FAMILIES,
    processes: int = 1,
    progress: Callable[[int, int], None] = lambda made, total: None,
) -> int:
    """Write `counts[split]` pictures of each split below folder; return how many.

    Three in ten are real, the others of all `families` alike. What was written before with the same
    arguments is left as it is, and anything else that lies there makes it raise FileExistsError.
    """
    chosen = tuple(families)
    # Last, so that a tree that was cut short is no whole one.
    mark, of_these = folder / "synthetic.json", {"seed": seed, "counts": dict(counts), "families": chosen}
    said = json.dumps(of_these)
    if mark.is_file() and mark.read_text() == said:
        return 0
    if mark.is_file():
        raise FileExistsError(f"{folder} holds other pictures: name an empty folder, or delete it")
    total, done = sum(counts.values()), 0
    for split, count in counts.items():
        part, top, masks = _PARTS[split]
        lines = []
        wanted = numbers_of(count, chosen)
        for sample in make_locals(seed, split, wanted, processes=processes):
            lines.append(_write(folder / part, top, masks, sample))
            progress(done := done + 1, total)
        (folder / part / "image_list.txt").write_text("".join(lines))
    mark.write_text(said)
    return total


def _write(folder: Path, top: str, masks: str, sample: LocalSample) -> str:
    """Write one picture and its truth; return its line of the list."""
    number = directory_of(sample.family, sample.camera)
    # By groups, which the reader takes the first hash for; pictures of one lie in folders of their own.
    group = hashlib.sha256(sample.group.encode()).hexdigest()[:32]
    own = hashlib.sha256(sample.data).hexdigest()[:32]
    inside = PurePosixPath(str(number), group, own, sample.name)
    path = folder / "image" / top / inside
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sample.data)
    if sample.family != REAL:
        truth = (folder / masks / inside).with_suffix(".png")
        truth.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(sample.mask).save(truth)
    forged = sample.family != REAL
    classes = (1, 2 if number <= _REPLACING else 1, number) if forged else (0, 0, 0)
    return " ".join([f"{top}/{inside}", *map(str, classes)]) + "\n"


def directory_of(family: str, camera: int | None) -> int:
    """Return the directory of a medium: of its family, or of a real one of the camera that took it.

    camera: its number in CAMERAS; None of a photograph. Raises KeyError for an unknown family.
    """
    if family != REAL:
        return DIRECTORIES[family]
    return _PHOTOGRAPHS if camera is None else _FIRST_CAMERAS + camera // _CAMERAS_OF_A_GROUP

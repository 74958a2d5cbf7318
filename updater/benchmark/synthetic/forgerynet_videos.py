"""The synthetic stream's clips, forged in stretches, as a tree in ForgeryNet's layout.

Directories and parts are those of `forgerynet_pictures`, beside which they may lie. The reader drops the
stretches of directories 2 and 8 only where these are forged throughout, which no clip here is.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath

from updater.benchmark.synthetic.clips import ClipSample, make_clips, numbers_of
from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.forgerynet_pictures import directory_of
from updater.data.layouts.forgerynet import classes_of

COUNTS: dict[str, int] = {"train": 240, "stream": 64, "after": 96}
_PARTS = {
    "train": ("Training", "train_video_release"),
    "stream": ("Validation", "val_video_release"),
    "after": ("Test", "test_video_release"),
}


def write_forgerynet_videos(
    folder: Path,
    seed: int = 0,
    counts: Mapping[str, int] = COUNTS,
    *,
    families: Iterable[str] = FAMILIES,
    processes: int = 1,
    progress: Callable[[int, int], None] = lambda made, total: None,
) -> int:
    """Write `counts[split]` clips of each split below folder; return how many.

    Half are real, the others of all `families` alike. What was written before with the same arguments is
    left as it is, and other videos there make it raise FileExistsError.
    """
    chosen = tuple(families)
    # Last, so that a tree that was cut short is no whole one.
    mark, of_these = folder / "synthetic-videos.json", {"seed": seed, "counts": dict(counts)}
    said = json.dumps(of_these | {"families": chosen})
    if mark.is_file() and mark.read_text() == said:
        return 0
    if mark.is_file():
        raise FileExistsError(f"{folder} holds other videos: name an empty folder, or delete it")
    total, done = sum(counts.values()), 0
    for split, count in counts.items():
        lines = []
        for sample in make_clips(seed, split, numbers_of(count, chosen), processes=processes):
            lines.append(_write(folder, split, sample))
            progress(done := done + 1, total)
        (folder / _PARTS[split][0] / "video_list.txt").write_text("".join(lines))
    mark.write_text(said)
    return total


def _write(folder: Path, split: str, sample: ClipSample) -> str:
    """Write one clip; return its line of the list."""
    part, top = _PARTS[split]
    number = directory_of(sample.family, sample.camera)
    # By groups, which the reader takes the first hash for; clips of one lie in folders of their own.
    group = hashlib.sha256(sample.group.encode()).hexdigest()[:32]
    own = hashlib.sha256(sample.data).hexdigest()[:32]
    listed = PurePosixPath(top, str(number), group, own, "video.mp4")
    path = folder / part / "video" / listed
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sample.data)
    stretches = _stretches(sample)
    told = " ".join(str(one) for stretch in stretches for one in stretch)
    return f"{len(stretches)} {listed} {told} {' '.join(map(str, classes_of(number)))}\n"


def _stretches(sample: ClipSample) -> list[tuple[int, int, int]]:
    """Return START, COUNT, FLAG of what follows on one another from the first frame to the last."""
    found, at = [], 0
    for first, end in (*sample.segments, (sample.frames, sample.frames)):
        found += [(at, first - at, 0), (first, end - first, 1)]
        at = end
    return [stretch for stretch in found if stretch[1]]

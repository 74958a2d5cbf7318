"""The data set's tree as a run takes it, and our own clips as one, FaceForensics++'s originals beside them.

A target is a rendered scene under a moving camera; its forgery is the same clip, forged throughout by one
family with draws that hold for the whole clip. Both are coded alike. Two families are left out of the tree:
they forge the clips of the hidden test. What stands in for that test, which was never released, is of a
method that nothing learnt, each clip under a mix of two to four of our own 36 distortions.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from ingest.durable import make_folder
from ingest.records import CropPlan
from updater.benchmark.data.cache import room
from updater.benchmark.data.deeperforensics import ORIGINALS, VARIANTS, load_deeperforensics, load_hidden
from updater.benchmark.deeperforensics.choices import RunChoices, variants_of
from updater.benchmark.forgerynet.tree import check_sets, digest_of
from updater.benchmark.networks.names import DEEPERFORENSICS
from updater.benchmark.synthetic.camera import CAMERAS, film
from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.scenes import render
from updater.benchmark.synthetic.stream import made_in_parallel
from updater.data.layouts.entries import Entry, LayoutError, Listing
from updater.distortions.clip_writing import to_h264
from updater.distortions.distortion import Step
from updater.distortions.files import distort_file, generator_of, meta_line
from updater.distortions.methods import FORGERYNET, MIXED, draw_steps
from updater.draws import SeedPurpose
from updater.progress import Progress

REALS_FOLDER, HIDDEN = "faceforensics", "hidden"
SIDE_PX, FRAMES = 256, 8
REACH_PX = 16
LEFT_OUT = ("inpainted", "sharpened")
LEARNT = tuple(name for name in FAMILIES if name not in LEFT_OUT)
COUNTS = {"train": 48, "val": 4, "test": 40}
HIDDEN_COUNT = 40
"""targets of the hidden test, half of them real, the others forged by the families that are left out"""
DISTORTED = ("sing", "rand", "mix2", "mix3", "mix4")
RATE_FACTORS = (18, 24)
_OTHER_METHOD = "reenact"
"""the variant of the data set that another method made"""


SMALL = CropPlan(patches=4, frames=2, faces=0)
"""of our own clips, which show no faces"""
_TREE = "1"
"""counts what has changed in our own clips"""


@dataclass(frozen=True)
class Data:
    """The entries of a tree."""

    name: str
    digest: str
    variants: dict[str, Listing]
    hidden: tuple[Entry, ...]
    """empty where there is nothing for it"""
    plan: CropPlan
    notes: tuple[str, ...]

    def part(self, variant: str, split: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.variants[variant].entries if entry.split == split)


def read(
    choices: RunChoices, data: Path, reals: Path, hidden: Path | None, home: Path, tell: Callable[[str], None]
) -> Data:
    """Read the variants that the choices name. tell: is told what a run puts into its folder, home.

    Raises LayoutError, and OSError.
    """
    if not data.is_dir():
        raise LayoutError(f"--data {data} is no folder: name the one that holds manipulated_videos and lists")
    if not reals.is_dir():
        raise LayoutError(f"--real {reals} is no folder: name FaceForensics++, whose videos the reals are")
    test = load_hidden(hidden).entries if hidden is not None else other_methods_test(data, reals)
    # The clips under one distortion at a time are made of those that have none.
    needed = dict.fromkeys([*choices.trained_variants, *choices.test, "std"])
    variants = {variant: load_deeperforensics(data, reals, variant) for variant in needed}
    notes = tuple(f"{of.name}: {note}" for of in variants.values() for note in of.notes)
    if not test:
        notes = (*notes, f"no {HIDDEN} test: it was never released, and there is no other method's folder")
    every = [entry for of in variants.values() for entry in of.entries]
    tree = Data("deeperforensics", digest_of([*every, *test], data), variants, test, CropPlan(), notes)
    tests = {name: tree.part(name, "test") for name in (*choices.test, "std")}
    tests |= {HIDDEN: test} if test else {}
    clips: set[Entry] = set()
    for training in choices.train:
        train = [entry for name in variants_of(training) for entry in tree.part(name, "train")]
        for name, entries in tests.items():
            clips |= {*train, *entries}
            try:
                check_sets(train, entries)
            except LayoutError as error:
                raise LayoutError(f"train {training}, test {name}: {error}") from None
    disk = sum(e.path.stat().st_size for e in clips if e.distortions and not e.distorted)
    # The memory is C3D's on a CPU, the most that a network of the paper takes.
    what, memory, plan = f"{len(clips)} clips", 3.9, CropPlan()
    if choices.model.partition(":")[0] not in DEEPERFORENSICS:
        crops = len(clips) * plan.frames * plan.patches
        what, memory = f"{what}, at most {crops} crops of {plan.crop_px} px", 0.8 + 5e-6 * crops
        disk += 3 * plan.crop_px**2 * crops
    tell(room(what, disk, memory, home))
    return tree


def read_own(choices: RunChoices, hidden: Path | None, home: Path, progress: Progress) -> Data:
    """Read our own clips, which are made once; hidden: another hidden test. Raises what `read` raises."""
    from updater.benchmark.forgerynet.run import make_once

    if hidden is not None:  # before minutes go by
        load_hidden(hidden)
    root = home / f"deeperforensics-{_TREE}"
    make_once(root, lambda of: write_deeperforensics(of, progress=partial(progress, "make clips")))
    tree = read(choices, root, root / REALS_FOLDER, hidden or root / HIDDEN, home, lambda line: None)
    return replace(tree, name="synthetic", plan=SMALL)


@dataclass(frozen=True)
class Target:
    """One scene: its number in the tree, and its forger."""

    number: int
    family: str
    split: str

    @property
    def name(self) -> str:
        """TTT_S.mp4: an actor of its own, so that no group is in two splits."""
        return f"{self.number:03}_{'MW'[self.number % 2]}{self.number:03}.mp4"


def write_deeperforensics(
    folder: Path,
    seed: int = 0,
    *,
    counts: dict[str, int] | None = None,
    hidden: int = HIDDEN_COUNT,
    processes: int = 2,
    progress: Callable[[int, int], None] = lambda made, total: None,
) -> None:
    """Write the tree below a folder: manipulated_videos, lists, and the originals; always the same.

    counts: targets of each split. Bytes are equal on machines with the same pinned packages and vector
    instructions. Processes are forked from one without threads: a script that calls this needs a main guard.
    """
    targets = list(_targets(counts or COUNTS, hidden))
    for place in (*(f"manipulated_videos/{VARIANTS[name]}" for name in ("std", *DISTORTED)), "lists/splits"):
        make_folder(folder / place)
    make_folder(folder / REALS_FOLDER / ORIGINALS)
    for kind in ("real", "fake"):
        make_folder(folder / HIDDEN / kind)
    jobs = [(folder, seed, target) for target in targets]
    for _ in made_in_parallel(_write_target, jobs, processes=processes, at_once=1, progress=progress):
        pass
    _write_lists(folder, seed, [target for target in targets if target.split != HIDDEN])


def clips_of(seed: int, target: Target) -> tuple[bytes, bytes]:
    """Return a target's real and forged clip, as MP4."""
    rng = SeedPurpose.DEEPERFORENSICS_CLIPS.generator(seed, target.number)
    side, state = SIDE_PX + 2 * REACH_PX, int(rng.integers(2**63))
    scene, camera = render(rng, side, side), CAMERAS[int(rng.integers(len(CAMERAS)))]
    # The window's way is smooth: even steps in each direction, within twice the reach.
    start, end = rng.integers(0, 2 * REACH_PX + 1, (2, 2))
    corners = np.rint(start + np.linspace(0, 1, FRAMES)[:, None] * (end - start)).astype(np.int64)
    windows = (scene[:, y : y + SIDE_PX, x : x + SIDE_PX] for y, x in corners)
    frames = film(rng, camera, state, windows)
    own, factor = int(rng.integers(2**63)), int(rng.integers(*RATE_FACTORS))
    forge = FAMILIES[target.family].forge
    forged = np.stack([forge(np.random.default_rng(own), frame) for frame in frames])
    return to_h264(frames, factor, "mp4"), to_h264(forged, factor, "mp4")


def steps_of(seed: int, target: Target, variant: str) -> tuple[Step, ...]:
    """Draw a target's distortions in a variant, as the published metas are."""
    rng = SeedPurpose.DEEPERFORENSICS_VARIANTS.generator(seed, target.number, DISTORTED.index(variant))
    count = int(variant.removeprefix("mix")) if variant.startswith("mix") else 1
    return draw_steps(rng, count, 5 if variant == "sing" else None)


def drawn_others(number: int, seed: int = 0) -> tuple[Step, ...]:
    """Draw a mix of two to four of the 36 for the clip of that number."""
    rng = SeedPurpose.OTHER_DISTORTIONS.generator(seed, number)
    return draw_steps(rng, int(rng.choice(MIXED)), names=tuple(FORGERYNET))


def other_methods_test(folder: Path, reals: Path) -> tuple[Entry, ...]:
    """Return the other method's test clips and their reals, to be distorted; nothing where there are none."""
    try:
        listing = load_deeperforensics(folder, reals, _OTHER_METHOD)
    except LayoutError:
        return ()
    test = [entry for entry in listing.entries if entry.split == "test"]
    return tuple(
        replace(entry, distortions=drawn_others(number), distorted=False) for number, entry in enumerate(test)
    )


def _targets(counts: dict[str, int], hidden: int) -> Iterator[Target]:
    for number, split in enumerate(Counter({**counts, HIDDEN: hidden}).elements()):
        families = LEFT_OUT if split == HIDDEN else LEARNT
        yield Target(number, families[number % len(families)], split)


def _write_target(folder: Path, seed: int, target: Target) -> None:
    real, forged = clips_of(seed, target)
    if target.split == HIDDEN:
        _write_hidden(folder / HIDDEN, seed, target, real, forged)
        return
    (folder / REALS_FOLDER / ORIGINALS / f"{target.number:03}.mp4").write_bytes(real)
    std = folder / "manipulated_videos" / VARIANTS["std"] / target.name
    std.write_bytes(forged)
    for variant in DISTORTED:
        place = folder / "manipulated_videos" / VARIANTS[variant] / target.name
        _distort(std, place, steps_of(seed, target, variant), f"{variant}/{target.name}", seed)


def _write_hidden(folder: Path, seed: int, target: Target, real: bytes, forged: bytes) -> None:
    # A real and a forgery are not of one target: whoever compares the two would see what was forged.
    kind, data = (("real", real), ("fake", forged))[target.number // len(LEFT_OUT) % 2]
    undistorted = folder / f".{target.number}.mp4"
    undistorted.write_bytes(data)
    name = f"{target.number:03}.mp4"
    _distort(undistorted, folder / kind / name, drawn_others(target.number, seed), f"hidden/{name}", seed)
    undistorted.unlink()


def _distort(source: Path, target: Path, steps: Sequence[Step], name: str, seed: int) -> None:
    distort_file(source, target, steps, generator_of(seed, name), via_xvid=False, max_pixels=SIDE_PX**2)


def _write_lists(folder: Path, seed: int, targets: Sequence[Target]) -> None:
    for split in ("train", "val", "test"):
        names = "".join(f"{target.name}\n" for target in targets if target.split == split)
        (folder / "lists/splits" / f"{split}.txt").write_text(names)
    metas = folder / "lists/manipulated_videos_distortions_meta"
    make_folder(metas)
    for variant in DISTORTED:
        place = VARIANTS[variant]
        lines = (meta_line(f"{place}/{target.name}", steps_of(seed, target, variant)) for target in targets)
        (metas / f"manipulated_videos_{place}_meta.txt").write_text("".join(f"{line}\n" for line in lines))

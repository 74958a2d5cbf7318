"""The localizer of releases in the spatial task, trained and calibrated as an update does it.

By its name alone it learns from the maps of the training pictures and from pseudo-forgeries of their reals;
as "localizer:pseudo" from reals and pseudo-forgeries alone, as the loop does; as "localizer:left-out", on our
own media, so and once for each family, without operations of the family's kinds, and tested on it alone.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from detector.looks.map_look import assembled, cells_of, covering
from detector.model.localizer import LocalizerGraph
from ingest.sandbox.crops import cut
from memory.records import REAL
from updater.benchmark.forgerynet.choices import ChoiceError, Job
from updater.benchmark.forgerynet.sights import Map, Mapped, Shown
from updater.benchmark.synthetic.families import FAMILIES
from updater.data.stored_rows import collected
from updater.data.training_data import LabelledCrops
from updater.draws import RandomStream
from updater.localizer.calibrate import THRESHOLD, calibrate
from updater.localizer.train import STEPS, MaskedCrops, train_localizer

CROP_PX = 128
MAX_PICTURES = 20_000
"""of more, so many are drawn to train on"""
_SIDE = CROP_PX // 8


def check(learns: str) -> None:
    """Raise ChoiceError for what stands behind ":" and is none."""
    if learns not in ("", "pseudo", "left-out"):
        raise ChoiceError(f"--model localizer:{learns} is none: choose of localizer, :pseudo and :left-out")


def measure(
    job: Job, train: Sequence[Shown], held_back: Sequence[Shown], test: Sequence[Shown], learns: str
) -> list[Mapped]:
    """Return the maps of the test pictures, of "left-out" one part for each family.

    Where nothing is held back, a fifth of the training's groups is. Raises ChoiceError.
    """
    check(learns)
    if learns == "left-out" and not job.choices.synthetic:
        raise ChoiceError("--model localizer:left-out knows our own families' kinds alone: use --synthetic")
    if not held_back:
        train, held_back = _apart(train)
    rng = RandomStream.LOCALIZER_PICTURES.generator(job.seed)
    drawn = np.sort(rng.permutation(len(train))[:MAX_PICTURES])
    learnt, held = _masked([train[one] for one in drawn]), _masked(held_back)
    everything, reals_held = tuple(range(len(test))), held.items.families.count(REAL)
    if learns != "left-out":
        graph = _trained(job, learnt, held, frozenset(), known=not learns)
        return [_mapped(graph, test, everything, reals_held)]
    families = sorted({one.sight.entry.family for one in test} - {REAL})
    parts = []
    for family in families:
        graph = _trained(job, learnt, held, FAMILIES[family].kinds, known=False)
        of_it = [number for number in everything if test[number].sight.entry.family in (REAL, family)]
        parts.append(_mapped(graph, test, tuple(of_it), reals_held))
    return parts


def _trained(
    job: Job, learnt: MaskedCrops, held: MaskedCrops, without: frozenset[str], *, known: bool
) -> LocalizerGraph:
    network = train_localizer(
        _reals(learnt.items),
        learnt if known else None,
        without=without,
        seed=job.seed,
        device=job.device,
        steps=job.choices.steps or STEPS,
        progress=lambda *at: job.progress("train the localizer", *at),
    )
    return calibrate(
        network,
        _reals(held.items),
        held if known else None,
        without=without,
        seed=job.seed,
        progress=lambda *at: job.progress("calibrate the localizer", *at),
    )


def _mapped(
    graph: LocalizerGraph, test: Sequence[Shown], numbers: tuple[int, ...], reals_held: int
) -> Mapped:
    pairs = [_map(graph, test[number]) for number in numbers]
    return Mapped(
        numbers,
        tuple(said for said, _ in pairs),
        tuple(true for _, true in pairs),
        THRESHOLD,
        {
            "reals held back": reals_held,
            "cut": float(graph.cut),
            "slope": float(graph.slope),
            "offset": float(graph.offset),
        },
    )


def _map(graph: LocalizerGraph, one: Shown) -> tuple[Map, Map]:
    pixels = one.pixels()
    height, width = pixels.shape[:2]
    corners, part = covering(width, height, CROP_PX)
    crops = torch.from_numpy(cut(pixels, corners, CROP_PX))
    with torch.inference_mode():
        cells = graph(crops, torch.zeros(len(crops), dtype=torch.int64))["cells"].numpy()
    said = assembled(cells, corners, part).cells
    left, top, part_width, part_height = part
    mask = one.mask(height, width)[top : top + part_height, left : left + part_width]
    return said, cells_of(mask, (said.shape[0], said.shape[1]))


def _masked(pictures: Sequence[Shown]) -> MaskedCrops:
    """Return all crops of pictures, and of each cell how much is forged."""
    starts = [0]
    cells: list[Map] = []

    def crops() -> Iterator[np.ndarray]:
        for picture in pictures:
            pixels = picture.pixels()
            height, width = pixels.shape[:2]
            corners, _ = covering(width, height, CROP_PX)
            mask = picture.mask(height, width)
            cells.extend(cells_of(mask[y:, x:], (_SIDE, _SIDE)) for x, y in corners)
            starts.append(starts[-1] + len(corners))
            yield cut(pixels, corners, CROP_PX)

    rows = collected(crops())
    entries = [picture.sight.entry for picture in pictures]
    items = LabelledCrops(
        ids=tuple(str(entry.path) for entry in entries),
        families=tuple(entry.family for entry in entries),
        sources=tuple(entry.group for entry in entries),
        groups=tuple(entry.group for entry in entries),
        crops=rows,
        starts=np.array(starts, np.int64),
    )
    return MaskedCrops(items, np.stack(cells))


def _reals(items: LabelledCrops) -> LabelledCrops:
    return items.take(number for number, family in enumerate(items.families) if family == REAL)


def _apart(pictures: Sequence[Shown]) -> tuple[list[Shown], list[Shown]]:
    """Hold back every fifth group."""
    groups = sorted({picture.sight.entry.group for picture in pictures})
    held = set(groups[::5])
    return (
        [picture for picture in pictures if picture.sight.entry.group not in held],
        [picture for picture in pictures if picture.sight.entry.group in held],
    )

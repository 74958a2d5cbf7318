"""The localizer of releases in the spatial task, trained and calibrated as an update does it.

By its name alone it learns from the maps of the training pictures and from pseudo-forgeries of their reals;
as "localizer:pseudo" from reals and pseudo-forgeries alone, as the loop does; as "localizer:left-out", on our
own media, so and once for each family, without operations of the family's kinds, and tested on it alone.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from detector.model.localizer import LocalizerGraph
from detector.second_pass.map_look import assemble_map, cells_of, covering
from ingest.sandbox.crops import cut
from memory.records import REAL
from updater.benchmark.forgerynet.choices import Job
from updater.benchmark.forgerynet.sights import Map, MapItem, MapResult
from updater.benchmark.synthetic.families import FAMILIES
from updater.data.stored_rows import collect_rows
from updater.data.training_data import LabelledCrops
from updater.draws import SeedPurpose
from updater.localizer.calibrate import THRESHOLD, calibrate
from updater.localizer.train import STEPS, MaskedCrops, train_localizer

CROP_PX = 128
MAX_PICTURES = 20_000
"""of more, so many are drawn to train on"""
_SIDE = CROP_PX // 8


def measure(
    job: Job, train: Sequence[MapItem], held_back: Sequence[MapItem], test: Sequence[MapItem], learns: str
) -> list[MapResult]:
    """Return the maps of the test pictures, of "left-out" one part for each family.

    Where nothing is held back, every fifth group of the training is.
    """
    if not held_back:
        held = {*sorted({item.sight.entry.group for item in train})[::5]}
        held_back = [item for item in train if item.sight.entry.group in held]
        train = [item for item in train if item.sight.entry.group not in held]
    rng = SeedPurpose.LOCALIZER_PICTURES.generator(job.seed)
    drawn = np.sort(rng.permutation(len(train))[:MAX_PICTURES])
    learnt, held_crops = _mask_crops([train[at] for at in drawn]), _mask_crops(held_back)
    everything = [item.sight.entry.family for item in test]
    parts = []
    for family in sorted({*everything} - {REAL}) if learns == "left-out" else [""]:
        without = FAMILIES[family].kinds if family else frozenset()
        graph = _train_graph(job, learnt, held_crops, without, known=not learns)
        numbers = [n for n, of in enumerate(everything) if not family or of in (REAL, family)]
        predicted, true = zip(*(_map(graph, test[number]) for number in numbers), strict=True)
        about = {name: float(getattr(graph, name)) for name in ("cut", "slope", "offset")}
        about["reals held back"] = held_crops.items.families.count(REAL)
        parts.append(MapResult(tuple(numbers), predicted, true, THRESHOLD, {**about}))
    return parts


def _train_graph(
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


def _map(graph: LocalizerGraph, item: MapItem) -> tuple[Map, Map]:
    pixels = item.sight.pixels()
    height, width = pixels.shape[:2]
    corners, part = covering(width, height, CROP_PX)
    crops = torch.from_numpy(cut(pixels, corners, CROP_PX))
    with torch.inference_mode():
        cells = graph(crops, torch.zeros(len(crops), dtype=torch.int64))["cells"].numpy()
    answer = assemble_map(cells, corners, part).cells
    left, top, part_width, part_height = part
    mask = item.mask(height, width)[top : top + part_height, left : left + part_width]
    return answer, cells_of(mask, (answer.shape[0], answer.shape[1]))


def _mask_crops(pictures: Sequence[MapItem]) -> MaskedCrops:
    """Return all crops of pictures, and of each cell how much is forged."""
    starts = [0]
    cells: list[Map] = []

    def crops() -> Iterator[np.ndarray]:
        for picture in pictures:
            pixels = picture.sight.pixels()
            height, width = pixels.shape[:2]
            corners, _ = covering(width, height, CROP_PX)
            mask = picture.mask(height, width)
            cells.extend(cells_of(mask[y:, x:], (_SIDE, _SIDE)) for x, y in corners)
            starts.append(starts[-1] + len(corners))
            yield cut(pixels, corners, CROP_PX)

    rows = collect_rows(crops())
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

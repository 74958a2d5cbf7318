"""Labelled crops as the learners and the calibration read them, and how they come from the memory."""

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import structlog

from detector.release.manifest import FEATURE_VERSION
from ingest.records import PicturePlan
from memory.crops.crop_store import CropsDamagedError, CropsMissingError, CropStore
from memory.declarations import ACTOR
from memory.labels import labels_by, standing_labels
from memory.records import Split
from memory.rows import UnknownExemplarError, select_exemplars, select_features
from memory.store import Store
from updater.data.real_clips import Gathering, RealClips
from updater.data.stored_rows import Collected, StoredRows, chosen_rows, joined_rows, rows_of_items
from updater.progress import Progress, Steps, no_progress, no_steps

log = structlog.get_logger()


class CropSizesError(ValueError):
    """Exemplars were cut at several sizes, which no one network takes. Fatal."""


class PicturesLackingError(ValueError):
    """Exemplars are kept without the whole pictures that a model looks at. Fatal."""


class CropsLostError(Exception):
    """So many crops cannot be read that the store itself must be wrong or lost. Fatal until it is mended."""


MAX_LOST_SHARE = 0.1
"""Of a split's exemplars, so many may lack their crops, and one always, before nothing is learnt at all."""


@dataclass(frozen=True)
class LabelledCrops:
    """n labelled items and their T crops, all of one side S, in columns.

    `take` and `join` are the only places where columns are chosen and put together: a column that is declared
    here goes through both.
    """

    ids: tuple[str, ...]
    """length n"""
    families: tuple[str, ...]
    """length n: the class of each item, "real" or a forgery family"""
    sources: tuple[str, ...]
    """length n: where each item came from"""
    groups: tuple[str, ...]
    """length n: items of one group show nearly the same, such as pieces of one photograph"""
    crops: npt.NDArray[np.uint8] | StoredRows
    """[T, S, S, 3], uint8, RGB; in memory or on disk"""
    starts: npt.NDArray[np.int64]
    """[n + 1]: rows starts[i]:starts[i + 1] of crops are item i's"""
    features: npt.NDArray[np.float32] | None = None
    """[n, F], the raw pooled forensic features that the memory holds; None where it holds none of today's"""
    crop_features: npt.NDArray[np.float32] | StoredRows | None = None
    """[T, F], float32, the raw forensic features of each crop, where they were computed before"""
    pictures: npt.NDArray[np.uint8] | StoredRows | None = None
    """[n, S', S', 3], uint8, RGB: each item's whole picture, resized; None where no expert takes it"""
    expert_logits: npt.NDArray[np.float32] | None = None
    """[n, E], what each expert of an update says of each item; None where that was not computed"""
    videos: npt.NDArray[np.bool_] | None = None
    """[n], known to be videos: real ones whose frames an import kept; None where that was not looked up"""
    media: npt.NDArray[np.str_] | None = None
    """[n], SHA-256 of each item's media, hexadecimal; None of items that no memory holds"""
    declared: npt.NDArray[np.bool_] | None = None
    """[n], whether its file declares generation; None of items that no memory holds"""
    labels: npt.NDArray[np.int64] | None = None
    """[n], number of the label that each bears in the memory's history; None of items that none holds"""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, items: Iterable[int]) -> "LabelledCrops":
        """Return these items, in this order."""
        at = np.fromiter(items, np.int64)
        rows, starts = rows_of_items(self.starts, at)
        columns = {n: _choose_rows(getattr(self, n), rows if n in _OF_CROPS else at) for n in _COLUMNS}
        return LabelledCrops(**columns, starts=starts)

    @staticmethod
    def join(parts: Sequence["LabelledCrops"]) -> "LabelledCrops":
        """Return the items of all parts, at least one, in order.

        A column that a part with items lacks is left out. Raises ValueError where rows differ in shape.
        """
        counts = np.concatenate([np.diff(part.starts) for part in parts])
        full = [part for part in parts if len(part)] or parts
        columns = {name: _join_columns([getattr(part, name) for part in full]) for name in _COLUMNS}
        return LabelledCrops(**columns, starts=np.cumsum([0, *counts]).astype(np.int64))

    def counts(self) -> dict[str, int]:
        return dict(sorted(Counter(self.families).items()))


_COLUMNS = tuple(column.name for column in fields(LabelledCrops) if column.name != "starts")
_OF_CROPS = {"crops", "crop_features"}
"""the columns that have a row a crop; the others have one an item"""


def _choose_rows(column: Any, at: npt.NDArray[np.int64]) -> Any:
    if isinstance(column, tuple):
        return tuple(column[i] for i in at)
    return None if column is None else chosen_rows(column, at)


def _join_columns(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], tuple):
        return tuple(value for part in parts for value in part)
    return None if any(part is None for part in parts) else joined_rows(parts)


@dataclass(frozen=True)
class Splits:
    """Every labelled item, by the side of the split on which its group lies for ever."""

    train: LabelledCrops
    calibration: LabelledCrops
    test: LabelledCrops
    resting: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """how many items of each class were over a budget and are in none, by split"""
    clips: Mapping[str, RealClips] = field(default_factory=dict)
    """frames of real videos by split, where a scanner is to learn from them"""
    by_declaration: frozenset[int] = frozenset()
    """numbers of the labels that files' declarations gave, and no person"""


def load_splits(
    store: Store,
    crops: CropStore,
    resting: Collection[str] = (),
    progress: Progress = no_progress,
    *,
    picture: PicturePlan | None = None,
    with_clips: bool = False,
) -> Splits:
    """Load all three splits but the exemplars that rest; progress gets (stage, done, total).

    picture: of which size whole pictures are loaded beside the crops; None for none. with_clips: whether
    frames of real videos are.

    Raises what `load` raises.
    """
    splits: tuple[Split, ...] = get_args(Split)
    with store.read() as connection:
        left_out = {
            split: Counter(
                str(row.family)
                for row in select_exemplars(connection, split=split)
                if row.id in resting and row.family is not None
            )
            for split in splits
        }
        by_declaration = frozenset(labels_by(connection, ACTOR))
    gathered: dict[str, Gathering] = {split: Gathering() for split in splits} if with_clips else {}

    def part(split: Split) -> LabelledCrops:
        steps = functools.partial(progress, f"load {split}")
        return load(store, crops, split, resting, steps, picture=picture, clips=gathered.get(split))

    return Splits(
        **{split: part(split) for split in splits},
        resting={split: dict(sorted(counts.items())) for split, counts in left_out.items() if counts},
        clips={split: rows.clips() for split, rows in gathered.items()},
        by_declaration=by_declaration,
    )


def load(
    store: Store,
    crops: CropStore,
    split: Split,
    resting: Collection[str] = (),
    progress: Steps = no_steps,
    *,
    picture: PicturePlan | None = None,
    clips: Gathering | None = None,
) -> LabelledCrops:
    """Load every exemplar of one split that bears a person's label, has its crops and does not rest.

    With a picture's plan, its whole picture too: an exemplar that was kept without one, or at another size,
    is left out as one without crops is. clips gathers frames of the real videos among them.

    What takes too much memory is on disk: 49 kB a crop of 128 px. An exemplar whose stored crops are missing
    or not what their digest says is left out, and said to be in the log: one bad disk block must
    not stop all learning, but a store that was lost or restored to an earlier time must. Raises
    CropsLostError, CropSizesError, PicturesLackingError, StoredRowsError, StoreUnavailableError or
    CropsUnavailableError.
    """
    with store.read() as connection:
        rows = [row for row in select_exemplars(connection, split=split) if row.id not in resting]
        labels = standing_labels(connection)
    # By what they show: the same media that came in another order teach the same.
    rows.sort(key=lambda row: (row.media_digest, row.id))
    kept, videos, counts, sides, lost, lacking = [], [], [], set(), 0, 0
    loaded, pictures = Collected(), Collected()
    shape = None if picture is None else (picture.height_px, picture.width_px, 3)
    for number, row in enumerate(rows, 1):
        # A dropped exemplar may have kept its label; its crops are gone.
        if row.family is not None and row.crops_digest is not None:
            try:
                views = crops.load_views(row.crops_digest)
                cut, image, _ = views
                if shape is not None and (image is None or image.shape != shape):
                    lacking += 1
                    continue
                kept.append(row)
                videos.append(views.scan is not None)
                counts.append(len(cut))
                sides.add(cut.shape[1])
                if len(sides) == 1:
                    loaded.add(cut)
                if image is not None and shape is not None:
                    pictures.add(image[None])
                if clips is not None:
                    clips.add(row, views)
            except (CropsMissingError, CropsDamagedError) as error:
                lost += 1
                log.error("exemplar left out", exemplar=row.id, error=str(error))
        progress(number, len(rows))
    if lost > max(1, MAX_LOST_SHARE * (len(kept) + lost)):
        raise CropsLostError(
            f"the crops of {lost} of {len(kept) + lost} exemplars of the {split} split are missing or "
            "damaged: restore the crop store of FORGEWATCH_MEMORY_CROPS_URL"
        )
    if lacking > max(1, MAX_LOST_SHARE * (len(kept) + lacking)):
        raise PicturesLackingError(
            f"{lacking} of {len(kept) + lacking} exemplars of the {split} split were kept without the whole"
            f" picture of {shape} that an expert takes, and it cannot be made of their crops: set"
            " FORGEWATCH_MEMORY_PICTURE_PX and import them into an empty memory, or remove the expert"
        )
    if lacking:
        log.warning("exemplars without a picture left out", split=split, exemplars=lacking)
    if len(sides) > 1:
        raise CropSizesError(f"exemplars of the {split} split have crops of {sorted(sides)} px")
    return LabelledCrops(
        ids=tuple(row.id for row in kept),
        families=tuple(str(row.family) for row in kept),
        sources=tuple(row.source for row in kept),
        groups=tuple(row.group for row in kept),
        crops=loaded.rows() if kept else np.zeros((0, 0, 0, 3), np.uint8),
        starts=np.cumsum([0, *counts]).astype(np.int64),
        features=_features(store, [row.id for row in kept]),
        pictures=None if shape is None else pictures.rows() if kept else np.zeros((0, *shape), np.uint8),
        videos=np.array(videos, bool),
        media=np.array([row.media_digest for row in kept], np.str_),
        declared=np.array([row.declares is not None for row in kept], bool),
        labels=np.array([labels[row.id] for row in kept], np.int64),
    )


def _features(store: Store, ids: list[str]) -> npt.NDArray[np.float32] | None:
    try:
        with store.read() as connection:
            return select_features(connection, FEATURE_VERSION, ids=ids).matrix
    except UnknownExemplarError:
        return None

"""What a person is shown of the unknown shelf: the list of its clusters, one of them, its sheet."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from sqlalchemy import Connection, case, func, select

from memory.clusters.shown import Shown, shown, shown_all
from memory.crops.crop_store import CropStore
from memory.records import Exemplar, ShiftAlarm
from memory.rows import exemplars_of
from memory.schema import alarms, clustering, exemplars
from memory.store import Store

_MARGIN_PX = 12
_TITLE_PX = 20
_TEXT_PX = 11
_LINE_PX = 15
_COLUMNS = 6
_PAPER = (250, 250, 248)
_INK = (25, 25, 25)
_FAINT = (110, 110, 110)


@dataclass(frozen=True)
class Listed:
    """A cluster of the list. members: those that still wait for a label, nearest to the medoid first.

    version, spread, resembles, unclustered and edit are `Shown`'s. alarm: what is known of
    a source whose suspects these are; else None.
    """

    id: str
    members: tuple[str, ...]
    version: str
    spread: float | None
    resembles: str | None
    unclustered: bool
    alarm: ShiftAlarm | None = None
    edit: int | None = None


@dataclass(frozen=True)
class Freshness:
    """How fresh the list is. computed_at: None before the first; newer: unknowns that came since."""

    computed_at: datetime | None
    newer: int


def list_clusters(store: Store) -> list[Listed]:
    """Return the clusters of which something still waits, in the order of `shown_all`.

    Raises StoreUnavailableError.
    """
    with store.read() as connection:
        return _list(connection)


def cluster_in_list(store: Store, name: str) -> tuple[Listed, list[Listed]]:
    """Return a cluster, which the list may hold no more, and the list.

    Raises UnknownClusterError or StoreUnavailableError.
    """
    with store.read() as connection:
        listed = _list(connection)
        found = next((cluster for cluster in listed if cluster.id == name), None)
        return found or _listed(shown(connection, name), {}), listed


def _list(connection: Connection) -> list[Listed]:
    query = select(alarms.c.id, alarms.c.evidence).where(alarms.c.evidence.is_not(None))
    evidence = {row.id: ShiftAlarm.model_validate_json(row.evidence) for row in connection.execute(query)}
    return [_listed(cluster, evidence) for cluster in shown_all(connection)]


def _listed(cluster: Shown, evidence: Mapping[int, ShiftAlarm]) -> Listed:
    return Listed(
        id=cluster.id,
        members=cluster.members,
        version=cluster.version,
        spread=cluster.spread,
        resembles=cluster.resembles,
        unclustered=cluster.unclustered,
        alarm=None if cluster.alarm is None else evidence.get(cluster.alarm),
        edit=cluster.edit,
    )


def freshness(store: Store) -> Freshness:
    """Return how fresh the list of clusters is. Raises StoreUnavailableError."""
    with store.read() as connection:
        row = connection.execute(select(clustering)).first()
        after = exemplars.c.revision > (-1 if row is None else row.revision)
        # The shelf is no condition: its index would be read, all that waits, for the few that came.
        waits = case((exemplars.c.shelf == "unknown", 1), else_=0)
        newer = connection.scalar(select(func.sum(waits)).where(after)) or 0
    computed_at = None if row is None else datetime.fromtimestamp(row.computed_ms / 1000, UTC)
    return Freshness(computed_at, newer)


def members_of(store: Store, name: str) -> list[Exemplar]:
    """Return what was shown under a cluster's name and still waits for a label, in the order shown.

    Items that arrived since are not among them, so a label means what its giver saw; but a cluster that a
    person made shows what joined it. Raises UnknownClusterError or StoreUnavailableError.
    """
    with store.read() as connection:
        return exemplars_of(connection, shown(connection, name).members)


def cluster_sheet(store: Store, crops: CropStore, name: str, most: int = 24) -> bytes:
    """Return a PNG of the first crops of a cluster's members, nearest to the medoid first.

    Raises UnknownClusterError, StoreUnavailableError, CropsMissingError, CropsDamagedError or
    CropsUnavailableError.
    """
    members = [e for e in members_of(store, name) if e.crops_digest is not None]
    tiles = [
        Tile(
            crop=crops.load(str(e.crops_digest))[0],
            caption=e.id,
            note="" if e.unknown_score is None else f"unknown score {e.unknown_score:.2f}",
        )
        for e in members[:most]
    ]
    return contact_sheet(f"cluster {name}: {len(tiles)} of {len(members)} unknown items", tiles)


@dataclass(frozen=True)
class Tile:
    """One crop, uint8 RGB (S, S, 3), with two lines below it."""

    crop: NDArray[np.uint8]
    caption: str
    note: str


def contact_sheet(title: str, tiles: Sequence[Tile]) -> bytes:
    """Return a PNG of the tiles under a title, six a row, the crops at native scale."""
    side = max((tile.crop.shape[0] for tile in tiles), default=128)
    cell_width, cell_height = side + _MARGIN_PX, side + 2 * _LINE_PX + _MARGIN_PX
    rows = -(-len(tiles) // _COLUMNS)
    top = _TITLE_PX + 2 * _MARGIN_PX
    size = (_COLUMNS * cell_width + _MARGIN_PX, top + rows * cell_height + _MARGIN_PX)
    sheet = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((_MARGIN_PX, _MARGIN_PX), title, _INK, ImageFont.load_default(_TITLE_PX - 4))
    font = ImageFont.load_default(_TEXT_PX)
    for i, tile in enumerate(tiles):
        left = _MARGIN_PX + i % _COLUMNS * cell_width
        upper = top + i // _COLUMNS * cell_height
        sheet.paste(Image.fromarray(tile.crop), (left, upper))
        draw.text((left, upper + side + 2), _fitted(draw, tile.caption, font, side), _INK, font)
        draw.text((left, upper + side + 2 + _LINE_PX), _fitted(draw, tile.note, font, side), _FAINT, font)
    out = io.BytesIO()
    sheet.save(out, "PNG")
    return out.getvalue()


def _fitted(
    draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int
) -> str:
    # The end of an id (its offset or digest) tells items apart, so the beginning gives way.
    if draw.textlength(text, font) <= width:
        return text
    while text and draw.textlength("…" + text, font) > width:
        text = text[1:]
    return "…" + text

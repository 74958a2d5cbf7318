"""A person reviews the unknown shelf: the list of its clusters, one of them, its sheet, its label."""

import io
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from sqlalchemy import case, func, select

from memory.clusters.views import all_clusters, load_cluster, members_at_version, newest_act
from memory.crops.crop_store import CropStore
from memory.declarations import waiting_declarations
from memory.labels import LabelError, give
from memory.records import Clustering, ClusterView, Exemplar, SameBytes
from memory.rows import exemplars_of, utc_time
from memory.schema import clustering, exemplars
from memory.store import Store


def label_cluster(
    store: Store,
    cluster: str,
    name: str,
    actor: str,
    version: str | None = None,
    looked_at: Collection[str] | None = None,
    same: SameBytes = "refuse",
    declared: bool = False,
) -> tuple[int, list[str]]:
    """Label a cluster's seen members as a family, real or ignore; return the label's number and the items.

    All of them or none. version is the state of the cluster that was seen, and looked_at the ids of those
    that were before the giver's eyes: how many of the items they are is kept with the label. declared: only
    the members that declare generation; the others stay. Raises
    ClusterChangedError, UnknownClusterError, LabelError or StoreUnavailableError.
    """
    with store.write() as connection:
        ids = members_at_version(connection, cluster, version)
        if not ids:
            act = newest_act(connection, cluster)
            raise LabelError(f"nothing of cluster {cluster} waits any more: {act}")
        if declared:
            of_files = waiting_declarations(connection)
            ids = [id_ for id_ in ids if id_ in of_files]
        looked = None if looked_at is None else len(set(looked_at).intersection(ids))
        return give(connection, ids, name, actor, same, f"cluster {cluster}", looked), ids


_MARGIN_PX = 12
_TITLE_PX = 20
_TEXT_PX = 11
_LINE_PX = 15
_COLUMNS = 6
_PAPER = (250, 250, 248)
_INK = (25, 25, 25)
_FAINT = (110, 110, 110)


def list_clusters(store: Store) -> list[ClusterView]:
    """Return the clusters with waiting members, in the order of `all_clusters`.

    Raises StoreUnavailableError.
    """
    with store.read() as connection:
        return all_clusters(connection)


def cluster_in_list(store: Store, name: str) -> tuple[ClusterView, list[ClusterView]]:
    """Return a cluster, which the list may hold no more, and the list.

    Raises UnknownClusterError or StoreUnavailableError.
    """
    with store.read() as connection:
        listed = all_clusters(connection)
        match = next((cluster for cluster in listed if cluster.id == name), None)
        return match or load_cluster(connection, name), listed


def freshness(store: Store) -> Clustering:
    """Return how fresh the list of clusters is. Raises StoreUnavailableError."""
    with store.read() as connection:
        row = connection.execute(select(clustering)).first()
        after = exemplars.c.revision > (-1 if row is None else row.revision)
        # The shelf is no condition: its index would be read, all that waits, for the few that came.
        waits = case((exemplars.c.shelf == "unknown", 1), else_=0)
        newer = connection.scalar(select(func.sum(waits)).where(after)) or 0
    return Clustering(computed_at=None if row is None else utc_time(row.computed_ms), newer=newer)


def members_of(store: Store, name: str) -> list[Exemplar]:
    """Return the members shown under a cluster's name that still wait for a label, in the order shown.

    Items that arrived since are not among them, so a label means what its giver saw; but a cluster that a
    person made shows what joined it. Raises UnknownClusterError or StoreUnavailableError.
    """
    with store.read() as connection:
        return exemplars_of(connection, load_cluster(connection, name).members)


def cluster_sheet(store: Store, crops: CropStore, name: str, most: int = 24) -> bytes:
    """Return a PNG of the first crops of a cluster's members, nearest to the medoid first.

    Raises UnknownClusterError, StoreUnavailableError, CropsMissingError, CropsDamagedError or
    CropsUnavailableError.
    """
    members = [e for e in members_of(store, name) if e.crops_digest is not None]
    notes = ["" if e.unknown_score is None else f"unknown score {e.unknown_score:.2f}" for e in members]
    some = zip(members[:most], notes, strict=False)
    tiles = [(crops.load(str(e.crops_digest))[0], e.id, note) for e, note in some]
    return contact_sheet(f"cluster {name}: {len(tiles)} of {len(members)} unknown items", tiles)


def contact_sheet(title: str, tiles: Sequence[tuple[NDArray[np.uint8], str, str]]) -> bytes:
    """Return a PNG of crops, uint8 RGB (S, S, 3), under a title, six a row, each with two lines below it."""
    side = max((len(crop) for crop, _, _ in tiles), default=128)
    cell_width, cell_height = side + _MARGIN_PX, side + 2 * _LINE_PX + _MARGIN_PX
    rows = -(-len(tiles) // _COLUMNS)
    top = _TITLE_PX + 2 * _MARGIN_PX
    size = (_COLUMNS * cell_width + _MARGIN_PX, top + rows * cell_height + _MARGIN_PX)
    sheet = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((_MARGIN_PX, _MARGIN_PX), title, _INK, ImageFont.load_default(_TITLE_PX - 4))
    font = ImageFont.load_default(_TEXT_PX)
    for i, (crop, *lines) in enumerate(tiles):
        left = _MARGIN_PX + i % _COLUMNS * cell_width
        upper = top + i // _COLUMNS * cell_height
        sheet.paste(Image.fromarray(crop), (left, upper))
        for line, (text, colour) in enumerate(zip(lines, (_INK, _FAINT), strict=True)):
            place = left, upper + side + 2 + line * _LINE_PX
            draw.text(place, _fit_text(draw, text, font, side), colour, font)
    out = io.BytesIO()
    sheet.save(out, "PNG")
    return out.getvalue()


def _fit_text(
    draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int
) -> str:
    # The end of an id (its offset or digest) tells items apart, so the beginning gives way.
    if draw.textlength(text, font) <= width:
        return text
    while text and draw.textlength("…" + text, font) > width:
        text = text[1:]
    return "…" + text

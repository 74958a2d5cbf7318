"""Labelled files enter the memory, some at a time: first decoded and measured, then written."""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from sqlalchemy import Connection, select

from ingest.records import Decoded, MediaPlan
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.sandbox import Sandbox
from memory import acts
from memory.annotations import conflict, place
from memory.contradictions import near_duplicates
from memory.crops.crop_store import CropStore
from memory.crops.scans import Measure, RealVideo, is_scanned, measure_features, scans
from memory.index.index import Index
from memory.intake import Arrival, UnfitItemError, check, remember
from memory.labels import LabelError, extend_label, open_label, reopen_label
from memory.records import ImportDone, SkippedFile
from memory.rows import exemplars_of, media_of, rows_among
from memory.schema import exemplars
from memory.sources import SourceBlockedError, blocked_among
from memory.store import Store


@dataclass(frozen=True)
class LabelledFile:
    """A file's path below the imported folder, with slashes, and its bytes."""

    path: str
    data: bytes


@dataclass(frozen=True)
class Prepared:
    """Files that were decoded and measured: rows to be, by their ids, each with its path and class."""

    arrivals: Mapping[str, tuple[str, str, Arrival]]
    done: ImportDone


def labels_of_media(connection: Connection, digests: Sequence[str]) -> dict[str, str]:
    """Return the label of imported media now ("" for none), by the digest of its bytes."""
    ids = {_id(digest): digest for digest in digests}
    known = sorted(media_of(connection, list(ids)))
    return {ids[exemplar.id]: exemplar.family or "" for exemplar in exemplars_of(connection, known)}


def labelled_media(connection: Connection, digests: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the label of media of the stream, and its exemplar's id, by the digest of its bytes."""
    named = select(exemplars.c.media_digest, exemplars.c.family, exemplars.c.id).where(
        exemplars.c.family.is_not(None), exemplars.c.crops_digest.is_not(None)
    )
    rows = rows_among(connection, named, exemplars.c.media_digest, digests)
    return {row.media_digest: (row.family, row.id) for row in rows}


def test_media(connection: Connection, digests: Sequence[str]) -> list[str]:
    """Return which imported media lie on the test side of the split: nothing is trained or calibrated on."""
    known = sorted(media_of(connection, [_id(digest) for digest in digests]))
    return [exemplar.media_digest for exemplar in exemplars_of(connection, known) if exemplar.split == "test"]


def prepare(
    files: Sequence[LabelledFile],
    source: str,
    store: Store,
    sandbox: Sandbox,
    measure: Measure,
    plan: MediaPlan,
    max_file_bytes: int,
) -> Prepared:
    """Decode and measure files that the memory does not hold yet. Pure but for the reading: writes nothing.

    Real videos are decoded twice, for what a scanner learns from: without that where it fails.

    Raises StoreUnavailableError or SandboxUnavailableError.
    """
    done = ImportDone()
    digests = [hashlib.sha256(file.data).hexdigest() for file in files]
    with store.read() as connection:
        known = labels_of_media(connection, sorted(set(digests)))
        streamed = labelled_media(connection, sorted(set(digests)))
    decoding: dict[str, tuple[LabelledFile, str, str | None, Future[Decoded]]] = {}
    for digest, file in zip(digests, files, strict=True):
        try:
            family, group = place(file.path)
        except LabelError as error:
            _skip(done, file.path, str(error))
            continue
        if len(file.data) > max_file_bytes:
            _skip(done, file.path, f"too_large: more than {max_file_bytes} bytes")
        elif digest in known:
            _note_known(done, file.path, conflict(family, known[digest], _id(digest)))
        elif digest in decoding:
            first, called, *_ = decoding[digest]
            why = None if called == family else f"the same bytes are imported as {called}, from {first.path}"
            _note_known(done, file.path, why and f"{why}: leave one of the two out")
        elif digest in streamed and (why := conflict(family, *streamed[digest])) is not None:
            _skip(done, file.path, why)
        else:
            decoding[digest] = file, family, group, sandbox.submit(file.data, plan)
    decoded: dict[str, Decoded] = {}
    for digest, (file, _, _, future) in decoding.items():
        try:
            decoded[digest] = future.result()
        except DecodeError as error:
            _skip(done, file.path, f"{error.reason}: {error}")
    scanned = [is_scanned(decoding[digest][1], item) for digest, item in decoded.items()]
    rows = dict(zip(decoded, measure_features(list(decoded.values()), measure, scanned), strict=True))
    videos = {
        digest: RealVideo(decoding[digest][0].path, decoding[digest][0].data, decoded[digest], rows[digest])
        for digest, is_video in zip(decoded, scanned, strict=True)
        if is_video
    }
    frames = scans(videos, sandbox, plan.crops)
    arrivals = {}
    for digest, item in decoded.items():
        file, family, group, _ = decoding[digest]
        row = rows[digest].mean(0, dtype=np.float32)
        try:
            seen = {"features": row, "scan": frames.get(digest), "received_at": datetime.now(UTC)}
            own = {"id": _id(digest), "media_digest": digest, "source": source, "group": group}
            arrival = check(Arrival.of(item, **own, **seen))
        except UnfitItemError as error:
            _skip(done, file.path, str(error))
        else:
            arrivals[arrival.id] = file.path, family, arrival
    return Prepared(arrivals, done)


def write(
    prepared: Prepared, store: Store, crops: CropStore, index: Index, *, actor: str, labels: Mapping[str, int]
) -> ImportDone:
    """Remember and label prepared files, as one transaction: all of it or nothing.

    A file's id is its content's: to import again, after an interruption too, adds only what is
    missing. labels are those that an earlier part of the same import opened, by class; they are
    extended. Raises LabelError, UnknownExemplarError, SourceBlockedError,
    StoreUnavailableError, CropsUnavailableError.
    """
    arrivals, done = prepared.arrivals, prepared.done
    new = [arrival for *_, arrival in arrivals.values()]
    digests = crops.put_all([arrival.views for arrival in new])
    opened = dict(labels)
    by_family: dict[str, list[str]] = {}
    with store.write() as connection:
        if refused := blocked_among(connection, {arrival.source for arrival in new}):
            raise SourceBlockedError(
                f"the source {min(refused)!r} is blocked: `forgewatch memory unblock` lets it in again"
            )
        remembered = remember(connection, crops, index, new, digests)
        for item in remembered.new:
            by_family.setdefault(arrivals[item][1], []).append(item)
        for family, ids in by_family.items():
            if family in opened:
                reopen_label(connection, opened[family], family, actor)
            else:
                opened[family] = open_label(connection, family, actor)
            extend_label(connection, opened[family], ids)
            source = arrivals[ids[0]][2].source
            details = {"label": opened[family], "what": family, "source": source, **acts.as_fields(ids)}
            acts.append(connection, actor, "import", f"label {opened[family]}", details)
        for family, ids in by_family.items():
            done.contradicted += near_duplicates(connection, ids, family)
        # Another import was quicker with these bytes.
        others = arrivals.keys() - set(remembered.new)
        taken = labels_of_media(connection, [arrivals[item][2].media_digest for item in others])
    done.labels = {family: number for family, number in opened.items() if family in by_family}
    done.new = {family: len(ids) for family, ids in by_family.items()}
    for item in others:
        path, family, arrival = arrivals[item]
        _note_known(done, path, conflict(family, taken[arrival.media_digest], arrival.id))
    return done


def _note_known(done: ImportDone, path: str, why: str | None) -> None:
    if why is None:
        done.already += 1
    else:
        _skip(done, path, why)


def _skip(done: ImportDone, path: str, reason: str) -> None:
    done.skipped.append(SkippedFile(path=path, reason=reason))


def _id(digest: str) -> str:
    return f"import-{digest}"

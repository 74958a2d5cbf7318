"""The API's part about what the memory is told: labels, and labelled folders as tar archives."""

import tarfile
from collections.abc import Iterator
from tempfile import SpooledTemporaryFile
from typing import IO, Annotated, Self

import structlog
from fastapi import APIRouter, HTTPException, Path, Query, Request
from starlette.concurrency import run_in_threadpool

from deploy.access.guard import UNLIMITED, Actor, GuardedRoute
from deploy.access.roles import least
from deploy.records import LabelDone, LabelRequest, MediaDigests
from deploy.releases.standing import replay
from deploy.server.clusters import MAX_LABEL_BYTES
from deploy.server.services import Opened, Services
from detector.release.artifact import MANIFEST
from detector.release.contract import PICTURE
from detector.release.manifest import read_manifest
from ingest.records import MediaPlan
from memory.clusters.review import label_cluster
from memory.contradictions import near_duplicates
from memory.import_files import LabelledFile, labels_of_media, test_media
from memory.labels import LabelError, history, label, undo
from memory.records import ImportDone, LabelEntry

log = structlog.get_logger()
router = APIRouter(route_class=GuardedRoute)


@router.post(
    "/labels",
    tags=["memory"],
    status_code=201,
    openapi_extra=least("reviewer"),
    max_body_size=MAX_LABEL_BYTES,
)
def add_label(services: Opened, actor: Actor, body: LabelRequest) -> LabelDone:
    """Call exemplars a family, `real` or `ignore`: all of them or none.

    409 where the name is none, crops were purged, the same bytes are called another class, or the cluster
    changed since that version was seen, and who changed it; 404 for an unknown cluster or id.
    """
    if body.cluster is not None:
        number, ids = label_cluster(
            services.memory,
            body.cluster,
            body.family,
            actor,
            body.version,
            body.looked_at,
            body.same_bytes,
            body.declared,
        )
    else:
        ids = list(dict.fromkeys(body.ids or []))
        number = label(services.memory, ids, body.family, actor, body.same_bytes)
    log.info("labelled", label=number, family=body.family, exemplars=len(ids), actor=actor)
    with services.memory.read() as connection:
        contradicted = near_duplicates(connection, ids, body.family)
    return LabelDone(label=number, exemplars=len(ids), contradicted=contradicted)


@router.post("/labels/{number}/undo", tags=["memory"], status_code=201, openapi_extra=least("reviewer"))
def undo_label(services: Opened, actor: Actor, number: int) -> LabelDone:
    """Bring the exemplars of a label back to what they were; 409 where a later label holds one of them."""
    undoing = undo(services.memory, number, actor)
    log.info("label undone", label=number, undo=undoing, actor=actor)
    (entry,) = (entry for entry in history(services.memory) if entry.label == undoing)
    return LabelDone(label=undoing, exemplars=entry.exemplars)


@router.get("/labels", tags=["memory"], openapi_extra=least("viewer"))
def list_labels(services: Opened) -> list[LabelEntry]:
    """Who called what what and when, and what was undone, the newest first."""
    return history(services.memory)


MAX_PART_BYTES = 2**28
"""Of a labelled folder in one request: eight times what `forgewatch import` sends; a larger file is alone."""
_HEAD_BYTES = 2**16  # of one file in an archive, with a long name

_TEXT = r"^[^\x00-\x1f\x7f-\x9f]+$"

Name = Annotated[str, Path(max_length=200, pattern=_TEXT, description="the folder's name")]
Labels = Annotated[list[int], Query(alias="label", description="labels that earlier parts of it began")]

Source = Annotated[
    str | None,
    Query(
        max_length=200, pattern=_TEXT, description="as the stream has it; else import: and the folder's name"
    ),
]

_MEMORY_BYTES = 2**24


@router.post("/known-media", tags=["memory"], openapi_extra=least("viewer"))
def known_media(services: Opened, body: MediaDigests) -> dict[str, str]:
    """What imported media is called now ("" for nothing), by its SHA-256; what was never is left out."""
    with services.memory.read() as connection:
        return labels_of_media(connection, body.digests)


@router.post("/test-media", tags=["memory"], openapi_extra=least("viewer"))
def get_test_media(services: Opened, body: MediaDigests) -> list[str]:
    """Which of this imported media is only measured on, by its SHA-256; what was never imported is left
    out."""
    with services.memory.read() as connection:
        return test_media(connection, body.digests)


@router.post("/imports/{name}", tags=["memory"], openapi_extra=least("reviewer"), max_body_size=UNLIMITED)
async def add_files(
    services: Opened,
    actor: Actor,
    name: Name,
    request: Request,
    labels: Labels = [],  # noqa: B006 - FastAPI copies it
    source: Source = None,
) -> ImportDone:
    """Take a part of a labelled folder: a tar archive (not compressed) of FAMILY/[GROUP/]FILE.

    It has at most 10,000 members. Files are known by their content: what the memory holds already is counted
    and left alone, so a part may be sent again. All of a part is remembered and labelled, or nothing.
    413 over the size limit, 422 where it is no such archive, 409 where a label given is none that may be
    extended.
    """
    with SpooledTemporaryFile(max_size=_MEMORY_BYTES) as archive:
        size, limit = 0, max(MAX_PART_BYTES, services.ingest.max_fetched_bytes + _HEAD_BYTES)
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise HTTPException(413, f"a part has at most {limit} bytes")
            archive.write(chunk)
        archive.seek(0)
        return await run_in_threadpool(_take, services, actor, source or f"import:{name}", archive, labels)


def _take(services: Services, actor: str, source: str, archive: IO[bytes], numbers: list[int]) -> ImportDone:
    try:
        files = files_of(archive)
    except ArchiveError as error:
        raise HTTPException(422, str(error)) from error
    labels = _labels(services, numbers) if numbers else {}
    done = services.importer.take(files, source, _plan(services), actor=actor, labels=labels)
    log.info("files imported", source=source, new=sum(done.new.values()), already=done.already, actor=actor)
    return done


def _labels(services: Services, numbers: list[int]) -> dict[str, int]:
    names = {entry.label: entry.what for entry in history(services.memory)}
    if wrong := [number for number in numbers if names.get(number) is None]:
        raise LabelError(f"there is no label {wrong[0]} to extend")
    return {str(names[number]): number for number in numbers}


def _plan(services: Services) -> MediaPlan:
    """The live release's, which every later release inherits; before the first one, crops alone.

    Where it looks at no whole picture, the settings say whether one is kept for a later release that does.
    """
    wanted = services.memory_settings.picture_plan
    kept = MediaPlan(pictures={} if wanted is None else {PICTURE: wanted})
    live = replay(services.ledger.events()).live
    if live is None:
        return kept
    manifest = b"".join(services.artifacts.read(live.digest, MANIFEST).pieces)
    plan = read_manifest(manifest).contract.media_plan
    return plan.model_copy(update={"pictures": plan.pictures or kept.pictures})


MAX_MEMBERS = 10_000
_MAX_EXTENSION_BYTES = 2**16
"""of a header that tells more of the file behind it, such as a long name"""
_EXTENSIONS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class ArchiveError(Exception):
    """An archive that is none, or holds what no import has."""


def files_of(archive: IO[bytes]) -> list[LabelledFile]:
    """Read all files of a tar archive, not compressed, with their bytes. Raises ArchiveError.

    They have no more bytes together than the archive, since none may begin before the one before it ends.
    """
    try:
        return list(_files(archive))
    except (tarfile.TarError, ValueError, OverflowError, OSError, EOFError, RecursionError) as error:
        raise ArchiveError(f"no tar archive of plain files: {error}") from error


def _files(archive: IO[bytes]) -> Iterator[LabelledFile]:
    end = 0
    with tarfile.open(fileobj=archive, mode="r:", tarinfo=_Header) as opened:
        for count, member in enumerate(opened, 1):
            if count > MAX_MEMBERS:
                raise ValueError(f"more than {MAX_MEMBERS} members")
            # Extended headers have a size of their own, which tarfile takes as it is (CVE-2025-8194).
            if member.size < 0 or member.offset < end:
                raise ValueError(f"{member.name!r} lies before the member in front of it")
            end = member.offset_data + member.size
            if member.isdir():
                continue
            content = opened.extractfile(member) if member.isreg() and not member.sparse else None
            if content is None:
                raise ValueError(f"{member.name!r} is no plain file")
            yield LabelledFile(member.name.removeprefix("./"), content.read())


class _Header(tarfile.TarInfo):
    """A header whose size is one that tarfile may be told of: it would go back, or read all memory full."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read one header's block. Raises ValueError for such a size."""
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0:
            raise ValueError(f"{header.name!r} has {header.size} bytes")
        if header.type in _EXTENSIONS and header.size > _MAX_EXTENSION_BYTES:
            raise ValueError(f"a header of {header.size} bytes; {_MAX_EXTENSION_BYTES} are allowed")
        return header

"""From files to labelled crops, by the same sandboxed decoding that the stream's media go through.

The forensic features of crops that lie in a cache are kept beside them: computed once, whatever is run.
"""

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save

from detector.release.contract import PICTURE
from detector.release.manifest import FEATURE_VERSION, FEATURE_WIDTH
from ingest.records import CropPlan, Decoded, MediaPlan, PicturePlan, Place, PlacesPlan, Plan
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings
from memory.index.picture_index import PictureIndex
from updater.benchmark.data.cache import Piece, fetch, identity, made_once, room
from updater.data.layouts.entries import DataError, LayoutError
from updater.data.layouts.listed import Tally
from updater.data.stored_rows import Shard, StoredRows, joined_rows, read_shard
from updater.data.training_data import LabelledCrops
from updater.distortions.clip_writing import CONTAINERS
from updater.filters import Picture
from updater.progress import Progress, no_progress

# Files are listed without torch, which takes seconds to load.
if TYPE_CHECKING:
    import torch

    from detector.features.texture import CropFeatures

# Small enough that an interrupted reading loses little, large enough to be few files.
_MOST_MEDIA = 256
_ENDS_ONE_IN = 256
_MOST_PENDING = 64
_HEAD = 4096  # bytes by which files of one size are compared first
_FIRST_FRAME = MediaPlan(crops=CropPlan(patches=1, face_patches=0, frames=1), frames=(0,))


@dataclass(frozen=True)
class MediaFile:
    """A file, the name that its item's id begins with (unique within a stream), and its class."""

    path: Path
    name: str
    family: str
    clip: str | None = None
    """the group of the clip that it is a frame of, unique within a stream; None where it stands alone"""


class UnreadableMediaError(DataError):
    """A file cannot be read or decoded."""


class ChangedMediaError(DataError):
    """A file was written to while a run read it."""


class CropReader(ExitStack):
    """Reads media as labelled crops; leaving its context ends its decoding children.

    Children are started when the cache (a folder, or None for no cache) lacks something. picture: how each
    medium is also shown whole; None for crops alone. tell: is told what a stream takes. pixels: whether they
    are kept; else the crops are [T, S, 0, 3], and have their forensic features.
    """

    def __init__(
        self,
        plan: CropPlan | None = None,
        cache: Path | None = None,
        progress: Progress = no_progress,
        processes: int = 2,
        picture: PicturePlan | None = None,
        tell: Callable[[str], None] = lambda line: None,
        *,
        pixels: bool = True,
    ) -> None:
        super().__init__()
        self.tell, self.pixels = tell, pixels
        self.beside = 0  # pictures of our own that are cut beside a stream's
        self.plan = plan or CropPlan()
        self.picture = picture
        self.cache = cache
        self.progress = progress
        self.processes = processes
        self._limits = IngestSettings().model_copy(update={"decode_processes": processes})
        self.tally = Tally()
        self._sandbox: Sandbox | None = None

    def read(self, stage: str, source: str, files: Sequence[MediaFile]) -> LabelledCrops:
        """Read the files; frames of a clip are one group, and so are other files that show the same picture.

        stage is what progress is told; source becomes every item's. Crops stay on disk; without a cache they
        are held in memory: 49 kB a crop of 128 px. Files that cannot be read or give no picture are left out,
        and counted in `tally`. Raises UnreadableMediaError where a class has no other, ChangedMediaError,
        CacheError and SandboxUnavailableError.
        """
        there: list[MediaFile] = []
        digests = []
        for number, file in enumerate(files, 1):
            try:
                digests.append(hashlib.sha256(self.bytes_of(file)).hexdigest())
                there.append(file)
            except UnreadableMediaError as error:
                self.tally.add("files cannot be read and are left out", error)
            self.progress(f"{stage}: what is there", number, len(files))
        by_first: dict[int, Piece | None] = {}
        # Several processes share the making: what another is at is come back to.
        for wait, (first, end) in product((False, True), pairwise([0, *_ends(digests)])):
            if by_first.get(first) is None:
                by_first[first] = self._piece(stage, there, digests, first, end, wait=wait)
            if wait:
                self.progress(stage, end, len(there))
        pieces = [piece for piece in by_first.values() if piece is not None]
        items = join(pieces, [of.name for of in there], [of.family for of in there], source, self.plan)
        items = replace(items, groups=_groups(there, digests, [h for piece in pieces for h in piece.hashes]))
        kept = np.flatnonzero(np.diff(items.starts))
        for damaged in np.flatnonzero(np.diff(items.starts) == 0):
            self.tally.add("files give no picture and are left out", there[damaged].path)
        left = {there[place].family for place in kept}
        if lost := [file for file in files if file.family not in left]:
            problem = f"no file of {lost[0].family} gives a picture (first: {lost[0].path})"
            raise UnreadableMediaError(f"{problem}: replace or remove them")
        return items if len(kept) == len(items) else items.take(kept)

    def check(self, trained: Sequence[MediaFile], *others: Sequence[MediaFile]) -> None:
        """Tell what a stream's files take, before any is decoded.

        Raises LayoutError for a class of a single file to train on, and for equal files in two of the parts.
        """
        by_size: dict[int, list[tuple[int, MediaFile]]] = {}
        for part, files in enumerate((trained, *others)):
            for file in files:
                if file.path.is_file():  # what is none is told of when it is read
                    by_size.setdefault(file.path.stat().st_size, []).append((part, file))
        for name, count in Counter(file.family for file in trained).items():
            if count == 1:
                raise LayoutError(f"class {name} has one picture to learn from: add some, or leave it out")
        for same in (of for of in by_size.values() if len({part for part, _ in of}) > 1):
            first: dict[bytes, tuple[int, MediaFile]] = {}
            for part, file in same:
                with suppress(OSError), file.path.open("rb") as opened:
                    other, twin = first.setdefault(opened.read(_HEAD), (part, file))
                    if other != part and self.bytes_of(file) == self.bytes_of(twin):
                        both = f"{file.path} and {twin.path}"
                        raise LayoutError(f"{both} are one picture in two sets: remove one")
        every, side = [file.path for files in (trained, *others) for file in files], self.plan.crop_px
        videos = sum(path.suffix.lower() in CONTAINERS for path in every)
        pictures = self.beside + len(every) - videos
        frames, media = pictures + videos * self.plan.frames, f"{pictures} pictures"
        crops, media = frames * self.plan.patches, media + (f" and {videos} videos" if videos else "")
        needed = crops * (3 * side**2 if self.pixels else 4 * FEATURE_WIDTH)
        form = f"at most {crops} crops of {side} px" + ("" if self.pixels else ", of which features are kept")
        line = room(f"{media}, {form}", needed, 0.8 + 4.5e-5 * frames, self.cache)
        self.tell(f"{line}; --crops N takes fewer")

    def _piece(
        self,
        stage: str,
        files: Sequence[MediaFile],
        digests: Sequence[str],
        first: int,
        end: int,
        *,
        wait: bool,
    ) -> Piece | None:
        """Return the crops of the files from `first` to before `end`; raises as `fetch` does."""
        own, known = files[first:end], digests[first:end]

        def make() -> Piece:
            contents = ((str(file.path), self.bytes_of(file)) for file in own)
            crops, px = np.zeros((0, self.plan.crop_px, self.plan.crop_px, 3), np.uint8), self.picture
            pictures = {PICTURE: np.zeros((1, px.height_px, px.width_px, 3), np.uint8)} if px else {}
            blank = Decoded("image", "", 0, 0, 1, crops, (), pictures=pictures)
            media: list[Decoded] = []
            for file, digest, (read, decoded) in zip(own, known, self.decode(contents, blank), strict=True):
                if read != digest:
                    raise ChangedMediaError(
                        f"{file.path} changed while it was read: let it be, and run again"
                    )
                media.append(decoded)
                self.progress(stage, first + len(media), len(files))
            piece = piece_of(known, known, media)
            if self.pixels or not len(piece.crops):
                return piece
            import torch

            from detector.features.texture import CropFeatures
            from updater.training.crop_rows import by_rows, forensics_on

            cpu, side = torch.device("cpu"), self.plan.crop_px
            rows = by_rows(forensics_on(cpu, CropFeatures(side), side), piece.crops, cpu)
            return replace(piece, crops=piece.crops[:][:, :, :0], features=rows)

        form = "" if self.pixels else f"features-{FEATURE_VERSION}"
        return fetch(self.cache, identity(self.plan, self.picture, known, form), make, wait=wait)

    def whole(self, path: Path) -> tuple[str, Picture]:
        """Return a still picture's SHA-256 and its pixels, uint8 RGB [H, W, 3], upright, out of tiles.

        Raises UnreadableMediaError, also for a video or an animation, and SandboxUnavailableError.
        """
        media = (str(path), self.bytes_of(MediaFile(path, "", "")))
        ((digest, first),) = self.decode(iter([media]), plan=_FIRST_FRAME)
        if first.kind == "video":
            raise UnreadableMediaError(f"{path} is a video or an animation: give pictures")
        width, height, px = first.width, first.height, min(max(first.width, first.height), 1024)
        tops, lefts = ([*range(0, side - px, px), max(side - px, 0)] for side in (height, width))
        places = tuple(Place(0, x, y) for y, x in product(tops, lefts))
        ((_, tiles),) = self.decode(iter([media]), plan=PlacesPlan(crop_px=px, places=places))
        picture = np.zeros((height, width, 3), np.uint8)
        for (_, x, y), tile in zip(places, tiles.crops, strict=True):
            picture[y : y + px, x : x + px] = tile[: height - y, : width - x]
        return digest, picture

    def decode(
        self, data: Iterator[tuple[str, bytes]], blank: Decoded | None = None, plan: Plan | None = None
    ) -> Iterator[tuple[str, Decoded]]:
        """Yield the SHA-256 and the decoded medium of each (name, bytes), in their order.

        blank: stands for a medium that gives no picture. plan: other views than the reader's. Raises
        UnreadableMediaError, which tells the name, where there is none such, and SandboxUnavailableError.
        """
        if self._sandbox is None:
            self._sandbox = self.enter_context(Sandbox(self._limits))
        wanted = plan or MediaPlan(crops=self.plan, pictures={PICTURE: self.picture} if self.picture else {})
        pending: deque[tuple[str, str, Future[Decoded]]] = deque()
        for name, content in data:
            digest = hashlib.sha256(content).hexdigest()
            pending.append((name, digest, self._sandbox.submit(content, wanted)))
            if len(pending) > _MOST_PENDING:
                yield _result(*pending.popleft(), blank)
        while pending:
            yield _result(*pending.popleft(), blank)

    def bytes_of(self, file: MediaFile) -> bytes:
        """Return a file's bytes, if not too many. Raises UnreadableMediaError."""
        try:
            with file.path.open("rb") as opened:
                # One byte too many makes the sandbox refuse it, with its reason.
                return opened.read(self._limits.max_fetched_bytes + 1)
        except OSError as error:
            raise UnreadableMediaError(
                f"{file.path} cannot be read ({error.strerror}): mend or remove it, and run again"
            ) from error


def _ends(digests: Sequence[str]) -> Iterator[int]:
    """Yield where each piece of these media ends: by the media themselves, and before it has too many.

    So a file that comes, goes or changes has a few pieces made anew, and not all that follow it.
    """
    last = 0
    for number, digest in enumerate(digests, 1):
        if int(digest[:8], 16) % _ENDS_ONE_IN == 0 or number - last == _MOST_MEDIA or number == len(digests):
            yield number
            last = number


def _groups(files: Sequence[MediaFile], digests: Sequence[str], hashes: Sequence[str]) -> tuple[str, ...]:
    """Return the group of each file: its clip, or the first file that shows the same picture."""
    index, groups, first = PictureIndex(), list[str](), dict[str, str]()
    for place, (file, digest) in enumerate(zip(files, digests, strict=True)):
        group, own = file.clip or first.get(digest), bytes.fromhex(hashes[place])
        if group is None:
            same = index.nearest(own)
            group = digest if same is None else groups[same]
        first.setdefault(digest, group)
        index.add([own], [place])
        groups.append(group)
    return tuple(groups)


def piece_of(digests: Sequence[str], groups: Sequence[str], media: Sequence[Decoded]) -> Piece:
    """Return a piece of one or more decoded media."""
    starts = np.cumsum([0, *(len(item.crops) for item in media)]).astype(np.int64)
    pictures = [item.pictures[PICTURE][0] for item in media if PICTURE in item.pictures]
    return Piece(
        tuple(digests),
        tuple(groups),
        np.concatenate([item.crops for item in media]),
        starts,
        tuple(item.picture_hashes.hex() for item in media),
        np.stack(pictures) if pictures else None,
    )


def join(
    pieces: Sequence[Piece], names: Sequence[str], families: Sequence[str], source: str, plan: CropPlan
) -> LabelledCrops:
    """Return the pieces' media as items, named and classed in that order."""
    digests = [digest for piece in pieces for digest in piece.digests]
    none = np.zeros((0, plan.crop_px, plan.crop_px, 3), np.uint8)
    pictures = [piece.pictures for piece in pieces if piece.pictures is not None]
    features = [piece.features for piece in pieces if piece.features is not None]
    return LabelledCrops(
        ids=tuple(f"{name}@{digest}" for name, digest in zip(names, digests, strict=True)),
        families=tuple(families),
        sources=(source,) * len(digests),
        groups=tuple(group for piece in pieces for group in piece.groups),
        crops=joined_rows([piece.crops for piece in pieces if len(piece.crops)] or [none]),
        starts=np.cumsum(np.concatenate([[0], *(np.diff(piece.starts) for piece in pieces)]), dtype=np.int64),
        crop_features=joined_rows(features) if features else None,
        pictures=joined_rows(pictures) if pictures else None,
    )


def _result(name: str, digest: str, future: "Future[Decoded]", blank: Decoded | None) -> tuple[str, Decoded]:
    try:
        return digest, future.result()
    except DecodeError as error:
        if blank is not None:
            return digest, blank
        problem = " ".join(f"{error.reason}: {error}".split())
        raise UnreadableMediaError(f"{name} gives no picture ({problem}): replace or remove it") from error


_OF = "of"


def stored_features(
    crops: StoredRows, device: "torch.device", progress: Callable[[int, int], None] = lambda done, total: None
) -> StoredRows:
    """Return the raw forensic features of each crop, float32 [T, F], from files beside the crops' own.

    What they lack is computed, each file by one of the processes that run at once. progress gets crops of
    all files, and how many there are. Raises CacheError.
    """
    from detector.features.texture import CropFeatures

    forensics, total = CropFeatures(crops.shape[1]).to(device), sum(shard.count for shard in crops.shards)
    shards: dict[int, Shard] = {}
    # What another process is at is come back to.
    for wait, (number, shard) in product((False, True), enumerate(crops.shards)):
        if number not in shards and (made := _features(shard, forensics, device, wait=wait)) is not None:
            shards[number] = made
            progress(sum(shard.count for shard in shards.values()), total)
    return crops.onto([shards[number] for number in sorted(shards)])


def _features(shard: Shard, forensics: "CropFeatures", device: "torch.device", *, wait: bool) -> Shard | None:
    from updater.training.crop_rows import by_rows, forensics_on

    path = shard.path.with_name(f"{shard.digest}.features-{FEATURE_VERSION}-{device.type}.safetensors")

    def read() -> Shard | None:
        own, about = read_shard(path, "features") or (shard, {})
        same = own.count == shard.count and about.get(_OF) == _provenance(own.digest, shard)
        return own if same else None

    def encode_features() -> bytes:
        crops = StoredRows([shard])
        features = by_rows(forensics_on(device, forensics, crops.shape[1]), crops, device)[:]
        digest = hashlib.sha256(np.ascontiguousarray(features).data).hexdigest()
        return save({"features": features}, {_OF: _provenance(digest, shard)})

    return made_once(path, read, encode_features, wait=wait)


def _provenance(digest: str, crops: Shard) -> str:
    return f"sha256 {digest} of the crops {crops.digest}"

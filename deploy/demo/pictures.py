"""The demonstration's sheets: maps over pictures, time lines under clips, beside the truth."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from deploy.client.pictures import draw_map, draw_scan
from deploy.demo.located import Answered, AnsweredClip, overlap, segments_of
from detector.records import Verdict
from ingest.records import CropPlan, MediaPlan, PicturePlan
from ingest.sandbox.extract import extract
from ingest.settings import IngestSettings
from memory.records import REAL
from updater.distortions.clip_writing import RATE
from updater.scan.training import hits

_TILE_PX, _GAP_PX, _LINE_PX, _TEXT_PX = 256, 8, 22, 14
_HEADS = ("as it was sent", "forged in truth", "the map of its verdict")
_COLUMNS = 2
_PAPER, _INK = (255, 255, 255), (20, 20, 20)
_MAPS_EXPLAINED = (
    "Left: the file. Middle: what was forged of it, the rest darkened; the release never sees this. Right:"
    " what the release says, the redder the likelier forged, with a box around the largest region it marks."
)


_FRAMES, _FRAME_PX = 8, 128
_TIMELINES_EXPLAINED = (
    "Left to right in time. Black: what is forged, in truth, which no release ever sees. Red: what is told.",
    "The line: how likely each frame is forged. Told is what stands out by as much as the dashed line says.",
)


@dataclass(frozen=True)
class ShownPicture:
    """A picture that was sent, by family, with its truth and its answer."""

    data: bytes
    family: str
    answered: Answered

    @property
    def is_located(self) -> bool:
        """Whether its verdict says where."""
        return self.answered.verdict.map is not None


@dataclass(frozen=True)
class ShownClip:
    """A clip that was sent, with its truth and its answer."""

    data: bytes
    answered: AnsweredClip

    @property
    def family(self) -> str:
        """Its truth, or "real"."""
        return self.answered.family

    @property
    def is_located(self) -> bool:
        """Whether its verdict says when."""
        return bool(self.answered.verdict.segments)


Item = TypeVar("Item", ShownPicture, ShownClip)


def to_look_at(sent: Sequence[Item]) -> list[Item]:
    """Choose of each family, and of the reals, the first item whose forged part is told, or the first."""
    chosen = {}
    for family in dict.fromkeys(item.family for item in sent):
        of_it = [item for item in sent if item.family == family]
        chosen[family] = next((item for item in of_it if item.is_located), of_it[0])
    return list(chosen.values())


def map_sheet(pictures: Sequence[ShownPicture]) -> Image.Image:
    """Draw a row for each picture: as it was sent, where it was forged, and its verdict's map."""
    rows = -(-len(pictures) // _COLUMNS)
    width = len(_HEADS) * (_TILE_PX + _GAP_PX) + 2 * _GAP_PX
    height = _TILE_PX + 2 * _LINE_PX + _GAP_PX
    paper = Image.new("RGB", (_COLUMNS * width, _LINE_PX + _GAP_PX + rows * height), _PAPER)
    _write(paper, (_GAP_PX, _GAP_PX), _MAPS_EXPLAINED)
    for number, picture in enumerate(pictures):
        left = _GAP_PX + number % _COLUMNS * width
        top = _LINE_PX + 2 * _GAP_PX + number // _COLUMNS * height
        _write(paper, (left, top), map_caption(picture))
        pixels, answered = _pixels(picture.data), picture.answered
        tiles = Image.fromarray(pixels), _true(pixels, answered.mask), _draw_verdict(pixels, answered)
        for place, (head, tile) in enumerate(zip(_HEADS, tiles, strict=True)):
            at = left + place * (_TILE_PX + _GAP_PX)
            _write(paper, (at, top + _LINE_PX), head)
            paper.paste(tile.resize((_TILE_PX, _TILE_PX)), (at, top + 2 * _LINE_PX))
    return paper


def map_caption(picture: ShownPicture) -> str:
    """Describe the forgery and its verdict in a line."""
    verdict = picture.answered.verdict
    begin = f"{picture.family}, {picture.answered.area:.0%} of the area: {_verdict_text(verdict)}"
    if verdict.map is None:
        return f"{begin}, no map" if verdict.label != REAL else f"{begin}, so not mapped"
    met = overlap(verdict.map, picture.answered.mask)
    return f"{begin}, {verdict.map.share:.0%} marked, IoU with the truth {met:.2f}"


def _verdict_text(verdict: Verdict) -> str:
    return f"called {verdict.label}" + (f" ({verdict.family})" if verdict.label == "fake" else "")


def _pixels(data: bytes) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "WEBP")).convert("RGB"))


def _true(pixels: NDArray[np.uint8], mask: NDArray[np.uint8]) -> Image.Image:
    lit = pixels * (0.25 + 0.75 * mask[..., None].astype(np.float32) / 255)
    return Image.fromarray(lit.astype(np.uint8))


def _draw_verdict(pixels: NDArray[np.uint8], answered: Answered) -> Image.Image:
    map_ = answered.verdict.map
    if map_ is None:
        return Image.new("RGB", (_TILE_PX, _TILE_PX), (225, 225, 225))
    # Over grey, since a picture may be red itself.
    grey = np.asarray(Image.fromarray(pixels).convert("L").convert("RGB"))
    return draw_map(grey, answered.verdict.width, map_)


def _write(paper: Image.Image, at: tuple[int, int], text: str) -> None:
    """Write a line of text whose upper left corner is there."""
    ImageDraw.Draw(paper).text(at, text, fill=_INK, font=ImageFont.load_default(_TEXT_PX))


def timeline_sheet(clips: Sequence[ShownClip]) -> Image.Image:
    """Draw each clip: frames of it, its true and its predicted segments, and each frame's score.

    Raises DecodeError.
    """
    tiles = [(timeline_caption(clip.answered), _draw_clip(clip)) for clip in clips]
    width = max((tile.width for _, tile in tiles), default=0) + 2 * _GAP_PX
    height = sum(tile.height + _LINE_PX + _GAP_PX for _, tile in tiles)
    top = len(_TIMELINES_EXPLAINED) * _LINE_PX + 2 * _GAP_PX
    paper = Image.new("RGB", (width, top + height), _PAPER)
    for number, line in enumerate(_TIMELINES_EXPLAINED):
        _write(paper, (_GAP_PX, _GAP_PX + number * _LINE_PX), line)
    for text, tile in tiles:
        _write(paper, (_GAP_PX, top), text)
        paper.paste(tile, (_GAP_PX, top + _LINE_PX))
        top += tile.height + _LINE_PX + _GAP_PX
    return paper


def timeline_caption(clip: AnsweredClip) -> str:
    """Describe the forgery and its verdict in a line."""
    verdict, label = clip.verdict, _verdict_text(clip.verdict)
    if verdict.scan is None:
        return f"{clip.family}: {label}, not scanned"
    n = len(verdict.segments or ())
    if clip.family == REAL:
        return f"a real clip: {label}, {n} told as forged" if n else f"a real clip: {label}, nothing told"
    met = hits(segments_of(verdict), clip.truth).sum()
    return f"{clip.family}: {label}; stretches: {len(clip.truth)} forged, {n} told, {met} found"


def _draw_clip(clip: ShownClip) -> Image.Image:
    verdict, plan = clip.answered.verdict, CropPlan(crop_px=32, patches=1, face_patches=0, frames=_FRAMES)
    view = PicturePlan(width_px=_FRAME_PX, height_px=_FRAME_PX)
    decoded = extract(clip.data, MediaPlan(crops=plan, pictures={"shown": view}), IngestSettings().max_pixels)
    frames = list(decoded.pictures["shown"])
    if verdict.scan is None:
        paper = Image.new("RGB", (_FRAMES * _FRAME_PX, _FRAME_PX), _PAPER)
        for number, frame in enumerate(frames):
            paper.paste(Image.fromarray(frame), (number * _FRAME_PX, 0))
        return paper
    truth = [(stretch.first / RATE, stretch.end / RATE) for stretch in clip.answered.truth]
    return draw_scan(frames, verdict.scan, verdict.segments or (), truth)

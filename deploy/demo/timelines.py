"""What the demonstration leaves to look at: time lines under clips, what is true beside what is told."""

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from deploy.client.timeline_picture import drawn
from deploy.demo.pictures import GAP_PX, LINE_PX, PAPER, called, write
from deploy.demo.when import AnsweredClip, segments_of
from ingest.records import CropPlan, MediaPlan, PicturePlan
from ingest.sandbox.extract import extract
from ingest.settings import IngestSettings
from memory.records import REAL
from updater.distortions.clip_writing import RATE
from updater.scan.calibrate import found

_FRAMES, _FRAME_PX = 8, 128
_EXPLAINED = (
    "Left to right in time. Black: what is forged, in truth, which no release ever sees. Red: what is told.",
    "The line: how likely each frame is forged. Told is what stands out by as much as the dashed line says.",
)


@dataclass(frozen=True)
class ShownClip:
    """A clip that was sent, with its truth and its answer."""

    data: bytes
    answered: AnsweredClip


def to_look_at(sent: Sequence[ShownClip]) -> list[ShownClip]:
    """Choose of each family, and of the reals, the first clip of which a stretch is told, or the first."""
    chosen = {}
    for family in dict.fromkeys(one.answered.family for one in sent):
        of_it = [one for one in sent if one.answered.family == family]
        chosen[family] = next((one for one in of_it if one.answered.verdict.segments), of_it[0])
    return list(chosen.values())


def sheet(clips: Sequence[ShownClip]) -> Image.Image:
    """Draw each clip: frames of it, when it was forged, what was told, and what was said of each frame.

    Raises DecodeError.
    """
    tiles = [(caption(one.answered), _drawn(one)) for one in clips]
    width = max((tile.width for _, tile in tiles), default=0) + 2 * GAP_PX
    height = sum(tile.height + LINE_PX + GAP_PX for _, tile in tiles)
    top = len(_EXPLAINED) * LINE_PX + 2 * GAP_PX
    paper = Image.new("RGB", (width, top + height), PAPER)
    for number, line in enumerate(_EXPLAINED):
        write(paper, (GAP_PX, GAP_PX + number * LINE_PX), line)
    for text, tile in tiles:
        write(paper, (GAP_PX, top), text)
        paper.paste(tile, (GAP_PX, top + LINE_PX))
        top += tile.height + LINE_PX + GAP_PX
    return paper


def caption(clip: AnsweredClip) -> str:
    """Say in a line what was forged, and what was said of it."""
    verdict, label = clip.verdict, called(clip.verdict)
    if verdict.scan is None:
        return f"{clip.family}: {label}, not scanned"
    told = len(verdict.segments or ())
    if clip.family == REAL:
        return (
            f"a real clip: {label}, {told} told as forged" if told else f"a real clip: {label}, nothing told"
        )
    met = found(segments_of(verdict), clip.truth).sum()
    return f"{clip.family}: {label}; stretches: {len(clip.truth)} forged, {told} told, {met} found"


def _drawn(clip: ShownClip) -> Image.Image:
    verdict, plan = clip.answered.verdict, CropPlan(crop_px=32, patches=1, face_patches=0, frames=_FRAMES)
    shown = PicturePlan(width_px=_FRAME_PX, height_px=_FRAME_PX)
    decoded = extract(
        clip.data, MediaPlan(crops=plan, pictures={"shown": shown}), IngestSettings().max_pixels
    )
    frames = list(decoded.pictures["shown"])
    if verdict.scan is None:
        paper = Image.new("RGB", (_FRAMES * _FRAME_PX, _FRAME_PX), PAPER)
        for number, frame in enumerate(frames):
            paper.paste(Image.fromarray(frame), (number * _FRAME_PX, 0))
        return paper
    truth = [(one.first / RATE, one.end / RATE) for one in clip.answered.truth]
    return drawn(frames, verdict.scan, verdict.segments or (), truth)

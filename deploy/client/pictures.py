"""A verdict to read and to look at: its sentence, a map over its picture, a scan under its clip. Pure."""

import base64
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from detector.records import ForgeryMap, Scan, Segment, Verdict
from ingest.records import Provenance

_COLOUR, _PALE, _GREY, _LINE = (255, 40, 40), (255, 205, 205), (150, 150, 150), (30, 60, 160)
_TRUE = (20, 20, 20)
_STRONGEST = 0.6
"""how much of the picture the most certain cell hides"""
_WIDTH, _PLOT, _MARGIN, _LANE = 960, 120, 36, 12
"""of a time line, px"""

HELP = {
    "corrupt": "This file is damaged, such as cut off at its end. Try another copy of it.",
    "empty": "This file is empty. Choose another one.",
    "no_media": "This file is empty. Choose another one.",
    "unknown_format": "This is no picture or video that is read here. Save it as JPEG, PNG, WebP or MP4.",
    "too_large": "This file is too large. Send a smaller one, or a shorter clip.",
    "too_many_pixels": "This picture has too many pixels. Make it smaller.",
    "timeout": "This file takes too long to decode. Make it smaller, or cut the clip.",
    "out_of_memory": "This file takes too much memory to decode. Make it smaller.",
    "crashed": "This file cannot be decoded safely. Save it anew with another program.",
}
"""What to do, by the reason of a dead letter."""


def refusal(reason: str, why: str) -> str:
    """Return what to do about a file that has no verdict, by the reason and the text of its dead letter."""
    return f"{HELP[reason]} ({why})" if reason in HELP else f"{reason}: {why}"


_UNREAD = {
    "remote": "Its credential lies elsewhere and was not fetched.",
    "unreadable": "Its credential cannot be read.",
    "too_costly": "Its credential takes too much time or memory to read.",
}


def _origin(p: Provenance) -> list[str]:
    """Return a file's statements about its origin in words, as claims."""
    texts = ([_UNREAD[p.state]] if p.state in _UNREAD else []) + [f"{claim}." for claim in p.claims]
    camera = " ".join(filter(None, (p.metadata.make, p.metadata.model)))
    return [*texts, f"Its EXIF names the camera {camera}."] if camera else texts


def sentence(v: Verdict) -> str:
    """Return what a verdict says, why, and what of the file it is not about, in words.

    Each claim follows from the verdict's own numbers, so that it holds whichever rule of the gate spoke.
    """
    fakeness = _against("fakeness", v.fake_probability, v.fake_threshold)
    strangeness = _against("strangeness", v.unknown_score, v.unknown_threshold)
    known = [near.family for near in v.neighbours]
    stretches = ", ".join(f"{s.start_s:.1f} to {s.end_s:.1f} s" for s in sorted(v.segments or (), key=_start))
    if v.by_declaration:
        pixels = {None: "fake", "unknown": "like nothing that it knows"}.get(v.pixel_label, v.pixel_label)
        first = f"Forged, as its file states; its pixels look {pixels}; {fakeness}"
    elif v.pixel_label is not None:
        first = f"Not known: its pixels look {v.pixel_label}, but its credential is invalid; {fakeness}"
    elif v.label == "real":
        alike = ": like genuine items that it knows" if 2 * known.count("real") > len(known) else ""
        first = f"Probably real{alike}; {fakeness}"
    elif v.label == "fake":
        sure = "" if v.family_probability is None else f" ({v.family_probability:.0%})"
        first = f"Probably forged, most like {v.family}{sure}; {fakeness}"
    elif v.unknown_score > v.unknown_threshold:
        first = f"Not known: unlike all that it knows, which is no sign of forgery; {strangeness}; {fakeness}"
    elif v.fake_probability > v.fake_threshold:
        first = f"Not known: {fakeness}, but too strange to be called forged"
    elif v.unscanned is not None:
        first = f"Not known: nothing speaks against the part that was seen; {fakeness}"
    else:
        first = f"Not known: a stretch of it stands out; {fakeness}"
    own = "" if v.thresholds_of is None else f", thresholds of {v.thresholds_of}"
    rest = [f"{first}{own}.", *_origin(v.provenance)]
    if stretches:
        rest.append(f"It stands out from {stretches}.")
    if v.unscanned is not None:
        rest.append(f"It was not scanned: {v.unscanned}.")
    rest += [f"The {look} was left out: records waited." for look in v.left_out]
    if v.coverage.incomplete:
        rest.append("The file is cut or damaged: this is about the part that is there.")
    if v.kind == "video" and len(v.coverage.judged) < v.coverage.frames and v.scan is None:
        rest.append(f"{len(v.coverage.judged)} of {v.coverage.frames} frames were looked at.")
    if v.coverage.others:
        rest.append(f"Not looked at: {v.coverage.others} further pictures, pages or tracks of the file.")
    return " ".join(rest)


def _start(segment: Segment) -> float:
    return segment.start_s


def _against(name: str, value: float, threshold: float) -> str:
    """Return a score and its threshold with so many digits that it is seen which is larger."""
    for digits in range(2, 17):
        texts = f"{value:.{digits}f}", f"{threshold:.{digits}f}"
        if texts[0] != texts[1] or value == threshold:
            break
    return f"{name} {texts[0]}, threshold {texts[1]}"


def cells_of_map(forgery_map: ForgeryMap) -> NDArray[np.uint8]:
    """Return a map's cells, uint8 [h, w]: 0 real, 255 forged."""
    return np.asarray(Image.open(BytesIO(base64.b64decode(forgery_map.png)), formats=("PNG",)))


def draw_map(picture: NDArray[np.uint8], native_width: int, forgery_map: ForgeryMap) -> Image.Image:
    """Draw the cells over a picture, the redder the likelier forged, a box around what is marked.

    picture: uint8 RGB [H, W, 3], the whole frame at any size, of native_width px. What was not looked at is
    darker.
    """
    cells = cells_of_map(forgery_map)
    scale = picture.shape[1] / native_width
    left, top, width, height = forgery_map.part
    part = tuple(round(side * scale) for side in (left, top, left + width, top + height))
    # The cells at the right and lower edge may reach beyond the part, which cuts them.
    reach = tuple(max(1, round(count * forgery_map.cell_px * scale)) for count in cells.shape[::-1])
    opacity = Image.fromarray((cells * _STRONGEST).astype(np.uint8)).resize(reach, Image.Resampling.NEAREST)
    image = Image.fromarray(picture)
    dark = Image.eval(image, lambda level: level // 2)
    dark.paste(image.crop(part), part[:2])
    red = Image.new("RGB", reach, _COLOUR)
    inside = (0, 0, part[2] - part[0], part[3] - part[1])
    dark.paste(red.crop(inside), part[:2], opacity.crop(inside))
    if forgery_map.box is not None:
        x, y, box_width, box_height = forgery_map.box
        x0, y0 = x * scale, y * scale
        corners = [x0, y0, max(x0, x0 + box_width * scale - 1), max(y0, y0 + box_height * scale - 1)]
        ImageDraw.Draw(dark).rectangle(corners, outline=_COLOUR, width=2)
    return dark


def draw_scan(
    frames: Sequence[NDArray[np.uint8]],
    scan: Scan,
    segments: Sequence[Segment],
    truth: Sequence[tuple[float, float]] | None = None,
) -> Image.Image:
    """Draw what a scan says of each frame as a line, below frames of the clip, left to right in time.

    frames: uint8 RGB [H, W, 3] of one size, the middles of equal spans of the clip; at least one. What is
    told as forged is red, above it a bar below the frames. The dashed line is the threshold of stretches.
    truth: what is forged, in seconds, where somebody knows: black bars above the red ones.
    """
    tiles = [_tile(frame, (_WIDTH - 2 * _MARGIN) // len(frames)) for frame in frames]
    # With names beside the bars, they keep away from the numbers beside the plot.
    own = 4 if truth is None else _LANE
    true = own + _LANE
    bottom = max(tile.height for tile in tiles) + 4 + (own if truth is None else true)
    picture = Image.new("RGB", (_WIDTH, bottom + _PLOT + 28), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default()
    end_s = max(scan.times_s[-1] + scan.step_s, *(segment.end_s for segment in segments), 1e-3)

    def across(time_s: float) -> float:
        return _MARGIN + (_WIDTH - 2 * _MARGIN) * min(max(time_s, 0.0), end_s) / end_s

    def down(score: float) -> float:
        return bottom + _PLOT * (1 - score)

    def bar(start_s: float, end_s: float, above: int, colour: tuple[int, int, int]) -> None:
        sides = across(start_s), bottom - above - 2, across(end_s), bottom - above + 2
        draw.rectangle(sides, fill=colour)

    for number, tile in enumerate(tiles):
        picture.paste(tile, (_MARGIN + number * tile.width, 0))
    for segment in segments:
        sides = [across(segment.start_s), bottom, across(segment.end_s), bottom + _PLOT]
        draw.rectangle(sides, fill=_PALE)
        bar(segment.start_s, segment.end_s, own, _COLOUR)
    if truth is not None:
        for ends in truth:
            bar(*ends, true, _TRUE)
        for above, name in ((own, "told"), (true, "true")):
            draw.text((_MARGIN - 6, bottom - above), name, fill="black", font=font, anchor="rm")
    draw.rectangle([_MARGIN, bottom, _WIDTH - _MARGIN, bottom + _PLOT], outline=_GREY)
    for left in range(_MARGIN, _WIDTH - _MARGIN, 8):
        draw.line([left, down(scan.threshold), left + 3, down(scan.threshold)], fill=_COLOUR)
    line = [(across(time_s), down(score)) for time_s, score in zip(scan.times_s, scan.scores, strict=True)]
    draw.line(line if len(line) > 1 else line * 2, fill=_LINE, width=2)
    for score in (0.0, 1.0):
        draw.text((_MARGIN - 6, down(score)), f"{score:.0f}", fill="black", font=font, anchor="rm")
    for time_s in ticks(end_s):
        draw.line([across(time_s), bottom + _PLOT, across(time_s), bottom + _PLOT + 4], fill=_GREY)
        label = f"{time_s:g} s"
        draw.text((across(time_s), bottom + _PLOT + 6), label, fill="black", font=font, anchor="ma")
    return picture


def _tile(frame: NDArray[np.uint8], width: int) -> Image.Image:
    height = max(1, min(2 * width, round(width * frame.shape[0] / frame.shape[1])))
    return Image.fromarray(frame).resize((width, height))


def ticks(end_s: float) -> list[float]:
    """Return at most eleven round times from 0 on, the last at or before the end."""
    step = 10.0 ** np.floor(np.log10(end_s))
    step = next(step * part for part in (0.1, 0.2, 0.5, 1.0) if end_s / (step * part) <= 10)
    return [round(float(number * step), 6) for number in range(int(end_s / step) + 1)]

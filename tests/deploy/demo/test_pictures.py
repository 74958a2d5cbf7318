"""The sheet of maps that the demonstration leaves: which pictures, and what is told of each."""

import io

import numpy as np
from PIL import Image
from verdicts import make_item, make_verdict

from deploy.demo.pictures import Shown, caption, sheet, to_look_at
from deploy.demo.place import Answered
from detector.looks.map_look import PictureMap, forgery_map

SIDE = 64
GREY = np.full((SIDE, SIDE, 3), 100, np.uint8)
MASK = np.zeros((SIDE, SIDE), np.uint8)
MASK[:32, :32] = 255


def shown(number: int, family: str, label: str, *, with_map: bool) -> Shown:
    file = io.BytesIO()
    Image.fromarray(GREY).save(file, "PNG")
    cells = MASK[::8, ::8].astype(np.float32) / 255
    found = forgery_map(PictureMap(cells, (0, 0, SIDE, SIDE)), 0.5, 0) if with_map else None
    verdict = make_verdict(
        make_item(number), label=label, family="blended", map=found, width=SIDE, height=SIDE
    )
    return Shown(file.getvalue(), family, Answered(verdict, MASK))


def test_of_each_family_the_first_with_a_map_is_shown_or_else_the_first() -> None:
    sent = [
        shown(0, "blended", "real", with_map=False),
        shown(1, "smoothed", "real", with_map=False),
        shown(2, "blended", "fake", with_map=True),
        shown(3, "smoothed", "real", with_map=False),
        shown(4, "blended", "fake", with_map=True),
    ]
    chosen = to_look_at(sent)
    assert [one.answered.verdict.id for one in chosen] == ["media-0-2", "media-0-1"]


def test_a_caption_says_what_was_forged_and_how_much_of_it_was_found() -> None:
    told = caption(shown(0, "smoothed", "fake", with_map=True))
    assert told == "smoothed, 25% of the area: called fake (blended), 25% marked, IoU with the truth 1.00"
    assert caption(shown(0, "smoothed", "real", with_map=False)).endswith("called real, so not mapped")
    assert caption(shown(0, "smoothed", "unknown", with_map=False)).endswith("called unknown, no map")


def test_a_row_has_the_file_and_its_truth_and_its_map_side_by_side() -> None:
    drawn = np.asarray(sheet([shown(0, "smoothed", "fake", with_map=True)])).astype(int)
    row = drawn[200]  # in the upper left quarter of each tile, where it is forged
    sent, true, said = row[60], row[60 + 264], row[60 + 2 * 264]
    assert sent.tolist() == true.tolist() == [100, 100, 100]
    assert said[0] > 150 > said[1]
    outside = drawn[300]
    assert outside[60 + 264].tolist() == [25, 25, 25]
    assert outside[60 + 2 * 264].tolist() == [100, 100, 100]

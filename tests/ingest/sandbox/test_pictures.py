import socket
from dataclasses import replace

import numpy as np
import pytest

from ingest.records import CropPlan, Decoded, MediaPlan, PicturePlan, Region
from ingest.sandbox import framing, wire
from ingest.sandbox.pictures import shown

PLAN = MediaPlan(
    crops=CropPlan(crop_px=8, patches=2, face_patches=0, frames=2),
    pictures={"scene": PicturePlan(width_px=4, height_px=3)},
)
ANSWER = Decoded(
    kind="video",
    format="mp4",
    width=8,
    height=8,
    frames=2,
    crops=np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3),
    regions=(Region("frame", (0, 0, 8, 8), 5, 0.1, (0,)), Region("frame", (0, 0, 8, 8), 9, 0.2, (1,))),
    frame_numbers=(5, 9),
    length=10,
    pictures={"scene": np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)},
)


def received(answer: Decoded) -> Decoded:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send_decoded(theirs, answer)
        return wire.receive_decoded(ours, PLAN, 64, framing.wait)


def test_an_answer_keeps_its_pictures_and_which_frames_they_show() -> None:
    got = received(ANSWER)
    np.testing.assert_array_equal(got.crops, ANSWER.crops)
    np.testing.assert_array_equal(got.pictures["scene"], ANSWER.pictures["scene"])
    assert (got.frame_numbers, got.regions) == (ANSWER.frame_numbers, ANSWER.regions)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(ANSWER, frame_numbers=(5, 5)),
        replace(ANSWER, frame_numbers=(5,)),
        replace(ANSWER, frame_numbers=(5, 8)),
        replace(ANSWER, pictures={"scene": ANSWER.pictures["scene"][:1]}),
        replace(ANSWER, pictures={}),
        replace(ANSWER, crops=ANSWER.crops[:0], regions=()),
    ],
)
def test_an_answer_whose_pictures_and_frames_contradict_each_other_is_refused(wrong: Decoded) -> None:
    with pytest.raises(wire.WireError):
        received(wrong)


def test_a_picture_is_resized_as_its_plan_says() -> None:
    edge = np.zeros((16, 16, 3), np.uint8)
    edge[:, 8:] = 200
    made = {
        how: shown(edge, PicturePlan.model_validate({"width_px": 32, "height_px": 8, "interpolation": how}))
        for how in ("bilinear", "bicubic", "lanczos")
    }
    assert all(one.shape == (8, 32, 3) for one in made.values())
    assert made["bilinear"].max() == 200
    assert made["bicubic"].max() > 200, "a cubic overshoots at an edge"
    assert not np.array_equal(made["bicubic"], made["lanczos"])
    assert PicturePlan(width_px=32, height_px=8).interpolation == "bilinear"

"""Of a child's answer nothing is believed: it may have been taken over by what it decoded."""

import json
import math
import socket
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.picture_hash import PICTURE_BYTES
from ingest.records import CropPlan, Decoded, MediaPlan, PicturePlan, Place, PlacesPlan, Region
from ingest.sandbox import wire
from ingest.sandbox.decode import DecodeError

PLAN = MediaPlan(crops=CropPlan(crop_px=8, patches=2, face_patches=1, faces=1, frames=2))
MAX_PIXELS = 400
FACE = Region("face", (2, 2, 8, 8), 3, 0.5, (2,))
ANSWER = Decoded(
    kind="video",
    format="mp4",
    width=20,
    height=20,
    frames=1,
    crops=np.arange(3 * 8 * 8 * 3, dtype=np.uint8).reshape(3, 8, 8, 3),
    regions=(Region("frame", (0, 0, 20, 20), 3, 0.5, (0, 1)), FACE),
    frame_numbers=(3,),
    length=9,
    picture_hashes=bytes(range(PICTURE_BYTES)),
)


WITH_PICTURES = MediaPlan(
    crops=CropPlan(crop_px=8, patches=2, face_patches=0, frames=2),
    pictures={"scene": PicturePlan(width_px=4, height_px=3)},
)
SHOWN = Decoded(
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
PLACES = PlacesPlan(crop_px=8, places=(Place(0, 0, 0), Place(0, 8, 0), Place(3, 0, 0)))
CUT = Decoded(
    kind="image",
    format="PNG",
    width=20,
    height=20,
    frames=2,
    crops=np.arange(3 * 8 * 8 * 3, dtype=np.uint8).reshape(3, 8, 8, 3),
    regions=tuple(Region("frame", (8 * row, 0, 8, 8), 3 * (row == 2), 0.1, (row,)) for row in range(3)),
    frame_numbers=(0, 3),
    length=5,
)


def received(answer, plan):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send_decoded(theirs, answer)
        return wire.receive_decoded(ours, plan, MAX_PIXELS, wire.wait)


def received_raw(head, body):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=wire.send, args=(theirs, head, [body], wire.wait))
        sender.start()
        try:
            return wire.receive_decoded(ours, PLAN, MAX_PIXELS, wire.wait)
        finally:
            ours.close()
            sender.join()


@pytest.mark.parametrize(("answer", "plan"), [(ANSWER, PLAN), (SHOWN, WITH_PICTURES), (CUT, PLACES)])
def test_an_honest_answer_arrives(answer, plan):
    got = received(answer, plan)
    np.testing.assert_equal((got.crops, got.pictures), (answer.crops, answer.pictures))
    assert got == answer


BY_NO_CHILD = [
    *({"format": "a line\nand more"}, {"format": ""}, {"format": "x" * 17}, {"width": 0}, {"height": -1}),
    *({"width": 21}, {"frames": 0, "frame_numbers": ()}, {"frames": 3, "frame_numbers": (3, 4, 5)}),
    *({"frame_numbers": (-1,), "regions": ()}, {"frame_numbers": (2**60,), "regions": (), "length": 2**61}),
    *({"frame_numbers": (9,), "regions": ()}, {"crops": ANSWER.crops[:0], "regions": ()}),
    *({"crops": np.concatenate([ANSWER.crops] * 3)[:7]}, {"regions": (replace(FACE, crops=()),)}),
    *({"regions": (replace(FACE, crops=(3,)),)}, {"regions": (replace(FACE, crops=(-1,)),)}),
    *({"regions": (replace(FACE, crops=(1, 1)),)}, {"regions": (replace(FACE, frame=4),)}),
    *({"regions": (replace(FACE, box=(-1, 0, 8, 8)),)}, {"regions": (replace(FACE, box=(0, 0, 0, 8)),)}),
    *({"regions": (replace(FACE, box=(15, 15, 8, 8)),)}, {"regions": (FACE,) * 3}),
    *({"picture_hashes": bytes(PICTURE_BYTES - 1)}, {"picture_hashes": bytes(2 * PICTURE_BYTES)}),
]
CONTRADICTORY = [
    *({"frame_numbers": (5, 5)}, {"frame_numbers": (5,)}, {"frame_numbers": (5, 8)}),
    *({"pictures": {"scene": SHOWN.pictures["scene"][:1]}}, {"pictures": {}}),
    {"crops": SHOWN.crops[:0], "regions": ()},
]
OF_NO_PLACES = [
    *({"crops": np.concatenate([CUT.crops] * 2)}, {"frames": 3, "frame_numbers": (0, 1, 3)}),
    *({"regions": (*CUT.regions, CUT.regions[0])}, {"length": 3}, {"length": 2**60}),
]


@pytest.mark.parametrize(
    ("answer", "plan", "wrong"),
    [
        *((ANSWER, PLAN, wrong) for wrong in BY_NO_CHILD),
        *((SHOWN, WITH_PICTURES, wrong) for wrong in CONTRADICTORY),
        *((CUT, PLACES, wrong) for wrong in OF_NO_PLACES),
    ],
)
def test_an_answer_that_no_honest_child_gives_or_no_plan_asks_for_is_refused(answer, plan, wrong):
    with pytest.raises(wire.WireError):
        received(replace(answer, **wrong), plan)


def test_a_rejection_is_one_short_line_whatever_it_says():
    head = json.dumps({"reason": "corrupt", "message": "a\nb\x1b[2J\u202e" + "c" * 9999}).encode()
    with pytest.raises(DecodeError) as error:
        received_raw(head, b"")
    assert str(error.value).startswith("a b [2J c")
    assert len(str(error.value)) == 400
    assert str(error.value).isprintable()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
HONEST = {
    "kind": "image",
    "format": "PNG",
    "width": 9,
    "height": 9,
    "frames": 1,
    "rows": 1,
    "regions": [{"kind": "face", "box": [0, 0, 8, 8], "frame": 0, "time_s": None, "crops": [0]}],
    "frame_numbers": [0],
    "length": 1,
    "picture_hashes": "",
    "frame_s": 0.5,
}


AT_NO_TIME = [{**HONEST["regions"][0], "time_s": time_s} for time_s in (math.nan, math.inf)]


@pytest.mark.parametrize(
    "wrong",
    [*({"frame_s": s} for s in (-1.0, math.nan, math.inf, None)), *({"regions": [r]} for r in AT_NO_TIME)],
)
def test_a_frame_that_took_no_time_that_there_is_or_a_region_at_none_is_refused(wrong):
    assert len(received_raw(json.dumps(HONEST).encode(), bytes(192)).crops) == 1
    with pytest.raises(wire.WireError):
        received_raw(json.dumps(HONEST | wrong).encode(), bytes(192))


@pytest.mark.slow
@given(changes=st.dictionaries(st.sampled_from(sorted(HONEST)), JSON, max_size=3), body=st.integers(0, 4))
def test_whatever_a_child_answers_is_decoded_in_full_or_refused(changes, body):
    head = json.dumps(HONEST | changes).encode()
    try:
        decoded = received_raw(head, bytes(body * 192))
    except (wire.WireError, DecodeError):
        return
    assert 1 <= len(decoded.crops) <= 6
    assert decoded.crops.shape[1:] == (8, 8, 3)
    assert 1 <= decoded.width * decoded.height <= MAX_PIXELS
    for region in decoded.regions:
        assert len(decoded.crops[list(region.crops)]) >= 1
        assert region.frame in decoded.frame_numbers


@given(head=st.binary(max_size=200), body=st.binary(max_size=200))
def test_bytes_that_are_no_answer_are_refused(head, body):
    with pytest.raises((wire.WireError, DecodeError)):
        received_raw(head, body)

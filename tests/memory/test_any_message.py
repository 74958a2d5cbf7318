"""Whatever a stranger writes to the unknowns topic is an item that can be kept, or is refused."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verdicts import make_item, make_verdict

from detector.unknowns import encode
from ingest.records import InRecord
from memory.features import FEATURE_VERSION
from memory.intake import UnfitItemError
from memory.worker import arrival_of

VERDICT = make_verdict(make_item())
ROW = np.ones(3, np.float32)
MESSAGE = encode(VERDICT, np.zeros((2, 8, 8, 3), np.uint8), ROW, ROW, FEATURE_VERSION)


def with_shape(shape: list[int]) -> bytes:
    """A message whose crops have that shape and no bytes."""
    arrays: dict[str, Any] = {"crops": {"dtype": "U8", "shape": shape, "data_offsets": [0, 0]}}
    for place, name in enumerate(("features", "embedding")):
        at = [place * ROW.nbytes, (place + 1) * ROW.nbytes]
        arrays[name] = {"dtype": "F32", "shape": [3], "data_offsets": at}
    arrays["__metadata__"] = {
        "verdict": VERDICT.model_dump_json(),
        "left_out": "0",
        "feature_version": FEATURE_VERSION,
    }
    header = json.dumps(arrays).encode()
    return len(header).to_bytes(8, "little") + header + 2 * ROW.tobytes()


@pytest.mark.parametrize("shape", [[1, 0, 0, 3], [1 << 40, 0, 0, 3], [0, 8, 8, 3], [1 << 62, 0, 0, 3]])
def test_crops_without_a_pixel_are_refused_however_many(shape: list[int]) -> None:
    with pytest.raises(UnfitItemError):
        arrival_of(InRecord("u", 0, 0, 0, None, with_shape(shape), ()))


changes = st.lists(st.tuples(st.integers(0, len(MESSAGE) - 1), st.binary(min_size=1, max_size=4)), max_size=3)


@settings(max_examples=300)
@given(changes, st.integers(0, len(MESSAGE)))
def test_a_message_that_is_changed_anywhere_is_kept_or_refused(
    changes: list[tuple[int, bytes]], length: int
) -> None:
    value = bytearray(MESSAGE)
    for at, data in changes:
        value[at : at + len(data)] = data
    for written in (bytes(value), bytes(value[:length])):
        try:
            arrival = arrival_of(InRecord("u", 0, 0, 0, None, written, ()))
        except UnfitItemError:
            continue
        assert 0 < arrival.crops.size <= len(MESSAGE)
        assert np.isfinite(arrival.features).all()
        f"{arrival.id} {arrival.source}".encode()  # a surrogate would raise
